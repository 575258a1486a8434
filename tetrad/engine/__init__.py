"""The engine's classes, under vLLM's import paths."""
