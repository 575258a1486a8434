"""LLM, under vLLM's import path."""
