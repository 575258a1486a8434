"""vllm.Control: vLLM's gRPC API for discovery and operators."""
