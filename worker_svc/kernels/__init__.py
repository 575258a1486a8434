"""Triton kernels of the CUDA device, each with a torch reference that has the same result.

A file has one operation: its reference, its kernel, and the function that launches it; reference and launcher have the same
signature. No function here synchronises, allocates more than its result, or knows of requests, plans or models. Kernels must
not be compiled again during serving. Triton compiles again for a number that becomes 1 or a multiple of 16, hence
do_not_specialize, and for a tensor whose address is not a multiple of 16 bytes, so a step's tensors are aligned or are under
do_not_specialize_on_alignment.
"""
