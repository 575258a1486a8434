"""Matrices on the device, in the form in which a kernel multiplies them.

In every form, the first dimension of each tensor is the rows of the matrix, its outputs. So other code can concatenate the
parts of a fused product and reorder rows without knowing the form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights
from tetrad.worker_svc.layers.linear import Linear

ALL = slice(None)
"""All columns of a matrix."""


class Form(Protocol):
    """The form of a matrix: the meaning of its tensors. Matrices of equal forms can be one product."""

    def linear(self, tensors: Sequence[torch.Tensor], bias: torch.Tensor | None) -> Linear:
        """Return the layer y = x W^T + b; the tensors are in the layout of `fused`, and belong to the layer."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [R, C] of R outputs and C inputs.

    Attributes:
        form: the form of the tensors.
        tensors: the tensors on the device, each with R rows.
        columns: [C] int64 on the device, the input of each column; None: in order.
    """

    form: Form
    tensors: tuple[torch.Tensor, ...]
    columns: torch.Tensor | None = None

    def reordered(self, order: torch.Tensor) -> "Matrix":
        """Return a matrix whose row i is row order[i] of this matrix."""
        return Matrix(self.form, tuple(tensor[order] for tensor in self.tensors), self.columns)


@runtime_checkable
class Stackable(Protocol):
    """A Linear whose weights can be stacked with those of other experts, for a product of all experts in one launch."""

    def weights(self) -> ExpertWeights:
        """Return the tensors of the layer itself, as the matrix of one expert."""


class Scheme(Protocol):
    """Reads matrices from a model's files."""

    def read(self, weights: WeightLoader, name: str, rows: int, columns: int) -> Matrix:
        """Return the matrix of a prefix (without ".weight"); raise ModelError if its tensors are missing or wrong."""


def can_fuse(first: Matrix, second: Matrix) -> bool:
    """Return whether one kernel can multiply both matrices with the same input."""
    if first.form != second.form or (first.columns is None) != (second.columns is None):
        return False
    return first.columns is None or second.columns is None or torch.equal(first.columns, second.columns)


def fused(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the rows of parts that can be fused, in new memory.

    Weights keep their layout; scales and zeros [R, groups] become [groups, R], because a tile reads neighbouring outputs.
    """
    weight, *others = (torch.cat(pieces) for pieces in zip(*(part.tensors for part in parts), strict=True))
    return Matrix(parts[0].form, (weight, *(each.T.contiguous() for each in others)), parts[0].columns)
