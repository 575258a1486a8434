"""LLM, where programs made for vLLM import them from."""

from tetrad.library.llm import LLM as LLM
