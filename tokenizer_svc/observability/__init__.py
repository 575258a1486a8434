"""Metrics of the tokenizer."""
