"""CUDA steps: state, step inputs and sampled tokens stay on the device between steps.

runner.py is the table of contents. No part of a step waits for the device; results are copied to the host after the step, and
another thread waits for them. Without a GPU, the same code runs on host memory, with kernels under Triton's interpreter
(accelerator.py).
"""
