"""LLM, under vLLM's import path."""

from tetrad.library.llm import LLM as LLM
