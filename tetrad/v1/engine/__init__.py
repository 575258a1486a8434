"""The engine's classes, under the import paths of vLLM V1."""
