"""Verdicts on vLLM's names without a meaning of their own here, and the classes that accept them."""
