"""Types of metrics, under the import paths of vLLM V1."""
