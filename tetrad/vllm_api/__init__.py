"""Stubs of vLLM's own gRPC API (package vllm), generated from protos/third_party; served by frontend/api/gateways."""
