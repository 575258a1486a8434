"""The CPU's own kernels: C++, compiled for the machine's vectors, and the Python that composes a model from them."""
