"""Weights: files in, float32 tensors under Hugging Face's names out."""
