"""Dependent launch: a kernel starts before its predecessor ends, so that the device does not idle between the two.

CUDA calls it programmatic dependent launch. Such a kernel waits for the end of its predecessor before it reads or writes what
others write. The results of all earlier kernels are there then, too, because the predecessor has waited for them.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

_FROM = (9, 0)
"""The lowest compute capability of devices that have it."""


@triton.jit
def wait_for_predecessor(IS_DEPENDENT: tl.constexpr):
    """Wait for the end of the predecessor, and let the next kernel start; before it, a kernel may prefetch constants."""
    if IS_DEPENDENT:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Begin to load the cache lines of 128 bytes at these pointers into the L2 cache; not in the interpreter."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


def dependent_launch(device: torch.device) -> dict[str, bool]:
    """Return the options of a launch: the constant IS_DEPENDENT of the kernel, and Triton's option if the device has it."""
    if not _has_it(device):
        return {"IS_DEPENDENT": False}
    return {"IS_DEPENDENT": True, "launch_pdl": True}


@cache
def _has_it(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FROM
