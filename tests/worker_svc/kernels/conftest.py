"""Kernels run in Triton's interpreter here, unless there is a GPU: then the same tests run on it."""

import os

import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined: no test before this line may have imported one.
    os.environ["TRITON_INTERPRET"] = "1"
