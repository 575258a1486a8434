"""Stubs and messages, generated from protos/tetrad/v1 by `make protos`; engine/ and metrics/ have names of vLLM's `v1`."""
