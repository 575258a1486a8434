"""Tokenizers from directories and from GGUF files."""
