"""The gRPC service of the tokenizer, and its wire."""
