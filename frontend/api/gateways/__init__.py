"""Foreign gRPC APIs on the public port, for gateways made for vLLM. Only conversion of messages; AsyncLLM runs the requests."""
