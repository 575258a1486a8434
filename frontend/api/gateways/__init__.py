"""Foreign gRPC APIs on the public port: gateways made for vLLM drive Tetrad. Translation only; AsyncLLM does the work."""
