"""Native CPU kernels: C++ code compiled for the machine's vector instructions, and Python code that builds models from them."""
