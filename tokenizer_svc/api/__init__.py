"""The gRPC service of the tokenizer, and the conversion of its messages."""
