"""The step of the CUDA device: state that stays on the card, inputs built there, tokens that never leave it between steps.

runner.py is the table of contents. Nothing in a step waits for the device; results are copied out behind it and read by whoever
waits for them. Without a GPU the same code runs on host memory, its kernels under Triton's interpreter (accelerator.py).
"""
