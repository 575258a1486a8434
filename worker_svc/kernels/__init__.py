"""Triton kernels of the CUDA device, each beside the torch program that says what it computes.

A file has one operation: its reference, its kernel, and the function that launches it, with one signature for reference and
launcher. Nothing here synchronises, allocates more than its result, or knows of requests, plans or models.
"""
