"""AsyncLLM, under vLLM's import path."""

from tetrad.library.async_llm import AsyncLLM as AsyncLLM
