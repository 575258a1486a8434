"""Sampling: from logits to tokens, all rows of a step in one vectorised pass. sampler.py is the table of contents."""
