"""vllm.Inference: vLLM's own gRPC API for requests, which vllm-router uses."""
