"""Adapters, in the place where vLLM has them."""
