"""vllm.grpc.engine.VllmEngine, with the messages of the package smg-grpc-proto: what the gateway smg speaks."""
