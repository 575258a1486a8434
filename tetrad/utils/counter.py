"""Counter, under vLLM's import path."""
