"""vLLM's helpers for images in prompts, under vLLM's import path. They need Pillow; Tetrad itself does not."""
