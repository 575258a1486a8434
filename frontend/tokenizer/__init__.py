"""Tokenizers: calls, streams and replicas."""
