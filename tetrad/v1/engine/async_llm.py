"""AsyncLLM, where programs made for vLLM import them from."""

from tetrad.async_llm import AsyncLLM as AsyncLLM
