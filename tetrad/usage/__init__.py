"""Usage contexts, in the place where vLLM has them."""
