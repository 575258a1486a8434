"""LLMEngine, where programs made for vLLM import them from."""

from tetrad.library.llm_engine import LLMEngine as LLMEngine
