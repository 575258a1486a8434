"""Loads tokenizers from directories and from GGUF files."""
