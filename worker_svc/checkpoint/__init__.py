"""Checkpoints: reads the files of a model and returns tensors under Hugging Face's names."""
