"""Library: LLM, LLMEngine and AsyncLLM for Python programs, with the arguments, batches and results of their methods."""
