"""openengine.v1.Inference: OpenEngine's gRPC API for requests."""
