"""Sampling: chooses tokens from logits, for all rows of a step in one vectorised pass. sampler.py is the table of contents."""
