"""LLMEngine, under vLLM's import path."""

from tetrad.library.llm_engine import LLMEngine as LLMEngine
