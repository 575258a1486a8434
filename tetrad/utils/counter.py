"""Counter, where programs made for vLLM import them from."""
