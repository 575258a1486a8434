"""AsyncLLM with its older name, under vLLM's import path."""
