"""Usage contexts, under vLLM's import path."""
