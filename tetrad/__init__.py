"""Tetrad: LLM serving as four gRPC services."""
