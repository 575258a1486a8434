"""The CUDA accelerator: streams, copies to the host, and weights that stay there."""
