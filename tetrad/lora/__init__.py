"""Types of adapters, under vLLM's import path."""
