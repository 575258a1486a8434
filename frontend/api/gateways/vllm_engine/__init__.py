"""vllm.grpc.engine.VllmEngine: the API of the gateway smg, with the messages of the package smg-grpc-proto."""
