"""The CUDA accelerator: streams, copies to and from the host, and weights that are kept in host memory."""
