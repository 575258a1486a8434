"""Matrices on the device, in the form in which a kernel multiplies them.

In every form, the first dimension of each tensor is the matrix's rows, its outputs. So code can stack the parts of a fused
product and reorder rows without knowing the form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.layers.linear import Linear


class Form(Protocol):
    """The form of a matrix: the meaning of its tensors. Matrices of equal forms can be one product."""

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """Return the layer: y = x W^T + b; the tensors are its own, as `fused` leaves them."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [R, C] of R outputs and C inputs.

    Attributes:
        form: of its tensors.
        tensors: each with R rows, on the device.
        columns: [C] int64 on the device, which input each column takes; None: in order.
    """

    form: Form
    tensors: tuple[torch.Tensor, ...]
    columns: torch.Tensor | None = None

    def reordered(self, order: torch.Tensor) -> "Matrix":
        """Return the matrix whose row i is this one's row order[i]."""
        return Matrix(self.form, tuple(tensor[order] for tensor in self.tensors), self.columns)


class Scheme(Protocol):
    """Reads matrices out of a model's files."""

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """Return the matrix of a prefix (without ".weight"); ModelError if the files do not have it as they say."""


def can_fuse(first: Matrix, second: Matrix) -> bool:
    """Return whether the product of both over one input is one kernel."""
    if first.form != second.form or (first.columns is None) != (second.columns is None):
        return False
    return first.columns is None or second.columns is None or torch.equal(first.columns, second.columns)


def fused(parts: Sequence[Matrix]) -> Matrix:
    """Return the matrix of parts that can be fused, below each other, in memory of its own.

    Weights stay as they are; scales and zeros [R, groups] become [groups, R], as the outputs of a tile are read side by side.
    """
    weight, *others = (torch.cat(pieces) for pieces in zip(*(part.tensors for part in parts), strict=True))
    return Matrix(parts[0].form, (weight, *(each.T.contiguous() for each in others)), parts[0].columns)
