"""openengine.v1.Control: OpenEngine's gRPC API for discovery and operators."""
