"""Quantization on the CUDA device: how a checkpoint's matrices are stored, and in which form they are multiplied.

A scheme reads a matrix out of a model's files (awq.py, gptq.py, fp8_checkpoint.py; plain.py for floats) and repacks it at load
into a form, for which there is a kernel (plain.py, int8.py, int4.py, fp8.py). schemes.py chooses.
"""
