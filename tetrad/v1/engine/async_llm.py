"""AsyncLLM, where programs made for vLLM import them from."""

from tetrad.library.async_llm import AsyncLLM as AsyncLLM
