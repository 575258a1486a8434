"""Packed weights: matrices that checkpoints store in few bits, and the readers of their formats.

A reader (awq.py, gptq.py, compressed_tensors.py and others) finds the tensors of one matrix and returns its quanta, scales and
zeros; formats.py chooses the reader by config.json. Readers run on the host. The cuda device uses them too, except for formats
that it unpacks itself (quantization/schemes.py).
"""
