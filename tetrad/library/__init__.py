"""Library: the classes LLM, LLMEngine and AsyncLLM for Python programs."""
