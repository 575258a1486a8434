"""The sampler on CUDA."""
