"""The example images of vLLM's programs, under vLLM's import path."""
