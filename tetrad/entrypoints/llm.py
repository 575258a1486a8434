"""LLM, where programs made for vLLM import them from."""

from tetrad.llm import LLM as LLM
