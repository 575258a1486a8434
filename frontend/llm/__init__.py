"""AsyncLLM: the life of a request from intake to its last output."""
