"""LLM, in the place where vLLM has it."""
