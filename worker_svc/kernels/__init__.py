"""Triton kernels of the CUDA device, each beside a torch program with the same result.

A file has one operation: its reference, its kernel, and the function that launches it, with one signature for reference and
launcher. Nothing here synchronises, allocates more than its result, or knows of requests, plans or models. Nothing compiles a
kernel again in the middle of serving: Triton does that for a number that becomes 1 or a multiple of 16, hence
do_not_specialize, and for a tensor that does not begin at a multiple of 16 bytes, so those of a step do or
are under do_not_specialize_on_alignment.
"""
