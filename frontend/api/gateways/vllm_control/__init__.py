"""vllm.Control: what vLLM's own gRPC API has for discovery and for operators."""
