"""Quantization on the CUDA device: schemes that read a checkpoint's matrices, and forms in which kernels multiply them.

A scheme reads a matrix (packed.py from quantized checkpoints, online.py and plain.py from floats) and repacks it at load into a
form, for which there is a kernel (plain.py, int8.py, int4.py, fp8.py). schemes.py chooses the scheme.
"""
