"""Packed weights: matrices that checkpoints store in few bits, and the readers of their formats.

A reader (awq.py, gptq.py, compressed_tensors.py and others) finds the tensors of one matrix and returns its values, scales and
zeros, as stored where possible (matrices.py): so a rank unpacks only its part, and the cuda device unpacks words itself
(quantization/packed.py). formats.py chooses the reader by config.json.
"""
