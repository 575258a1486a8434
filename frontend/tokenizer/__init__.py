"""Clients of the tokenizer service: calls, streams and replicas."""
