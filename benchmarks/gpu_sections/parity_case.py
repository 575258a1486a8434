"""A case of kernel parity: one kernel at one shape in one data type."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """A kernel's result and the exact result, to be compared.

    Attributes:
        name: name of the kernel.
        shape: description of the inputs.
        compute: returns the kernel's result and the exact result, the latter in float64.
    """

    name: str
    shape: str
    compute: Callable[[], tuple[torch.Tensor, torch.Tensor]]
