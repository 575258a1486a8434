"""AsyncLLM under its older name, where programs made for vLLM import them from."""
