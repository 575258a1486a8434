"""LLMEngine, where programs made for vLLM import them from."""

from tetrad.llm_engine import LLMEngine as LLMEngine
