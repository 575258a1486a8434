"""Packed weights: matrices that checkpoints store in few bits, and the readers of their formats.

A reader (awq.py, gptq.py, compressed_tensors.py, fp8.py, mxfp4.py, bitsandbytes.py) finds the tensors of one matrix and returns
its quanta, scales and zeros; formats.py chooses the reader by config.json. Used on the host; the CUDA device repacks on the
GPU.
"""
