"""The sampler of the CUDA device."""
