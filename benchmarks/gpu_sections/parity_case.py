"""A case of kernel parity: one kernel at one shape in one type."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """The results to compare.

    Attributes:
        name: of the kernel.
        shape: what it is given, for people.
        compute: returns what the kernel found and what it should have, the latter in float64.
    """

    name: str
    shape: str
    compute: Callable[[], tuple[torch.Tensor, torch.Tensor]]
