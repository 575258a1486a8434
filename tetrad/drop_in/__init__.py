"""Accepts or refuses vLLM's names that Tetrad does not have, with a verdict for each."""
