"""vllm.grpc.engine.VllmEngine, with the messages of the package smg-grpc-proto: what smg and llm-d's endpoint picker speak."""
