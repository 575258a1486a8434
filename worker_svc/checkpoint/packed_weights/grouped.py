"""Grouped matrix: the quanta of a matrix, with a scale for each group of columns of a row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

_LARGEST = 127
BLOCK = 32
"""Number of columns in a group of values that `rounded` quantizes, and of activations that are quantized together."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedMatrix:
    """A matrix [R, C]: weight = scale * (quantum - zero), or, with a table, scale * table[quantum].

    Attributes:
        bits: bits of a quantum; at most 8.
        quanta: [R, C] uint8.
        scales: [R, C / G] float32, scales of groups of G columns.
        zeros: [R, C / G] uint8, or one value for all groups.
        table: [16] float32, or None.
    """

    bits: int
    quanta: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | int = 0
    table: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows, columns = self.quanta.shape
        return rows, columns

    @property
    def group(self) -> int:
        """The number of columns that share a scale."""
        return self.quanta.shape[1] // self.scales.shape[1]

    @property
    def block(self) -> int:
        """The number of columns that must not be separated."""
        return BLOCK

    @property
    def form(self) -> object:
        """The properties that matrices must share so that their rows can be concatenated."""
        table = None if self.table is None else tuple(self.table.tolist())
        return self.bits, self.group, self.quanta.shape[1], table, None if isinstance(self.zeros, torch.Tensor) else self.zeros

    def dequantized(self) -> torch.Tensor:
        """Return the weights [R, C] in float32."""
        groups = self.quanta.reshape(len(self.quanta), -1, self.group)
        if self.table is not None:
            values = self.table[groups.int()]
        elif isinstance(self.zeros, torch.Tensor):
            values = groups.float() - self.zeros[:, :, None].float()
        else:
            values = groups.float() - self.zeros
        return (values * self.scales[:, :, None]).flatten(1)

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> "GroupedMatrix":
        """Return a matrix of some rows; `choose` selects them from tensors with R rows."""
        zeros = choose(self.zeros) if isinstance(self.zeros, torch.Tensor) else self.zeros
        return replace(self, quanta=choose(self.quanta), scales=choose(self.scales), zeros=zeros)

    def of_columns(self, first: int, end: int) -> "GroupedMatrix":
        """Return a matrix of the columns from `first` up to `end`, in whole blocks; groups that are cut become smaller ones."""
        columns, zeros = self.shape[1], self.zeros
        return replace(
            self,
            quanta=self.quanta[:, first:end].contiguous(),
            scales=of_columns(self.scales, self.group, columns, first, end),
            zeros=of_columns(zeros, self.group, columns, first, end) if isinstance(zeros, torch.Tensor) else zeros,
        )


def of_columns(values: torch.Tensor, group: int, columns: int, first: int, end: int) -> torch.Tensor:
    """Return the values of some columns' groups; groups that are cut become smaller ones of equal size.

    Args:
        values: [R, Q], such as scales; Q = 1: a value for whole rows.
        group: number of columns in a group; the last group may have fewer.
        columns: number of columns of the matrix.
        first, end: the columns from `first` up to `end`.
    """
    if values.shape[1] == 1:
        return values
    size = group_of_columns(group, columns, first, end)
    finer = values if size == group else values.repeat_interleave(group // size, 1)
    return finer[:, first // size : -(-end // size)]


def group_of_columns(group: int, columns: int, first: int, end: int) -> int:
    """Return the number of columns in a group of the values of `of_columns`."""
    return math.gcd(group, first) if end == columns else math.gcd(group, first, end)


def joined(parts: Sequence[GroupedMatrix]) -> GroupedMatrix:
    """Concatenate the rows of matrices of the same form."""
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts]
    return replace(
        parts[0],
        quanta=torch.cat([part.quanta for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat([zero for zero in zeros if isinstance(zero, torch.Tensor)])
        if isinstance(zeros[0], torch.Tensor)
        else zeros[0],
    )


def rounded(weights: torch.Tensor) -> GroupedMatrix | None:
    """Quantize weights [R, C] to 8 bits, in groups of 32 columns; return None if C is not a multiple of 32.

    The largest value of a group is 127 times its scale. If a group has a non-finite value, its scale is not finite.
    """
    if weights.shape[1] % BLOCK:
        return None
    groups = weights.float().reshape(len(weights), -1, BLOCK)
    scales = groups.abs().amax(2) / _LARGEST
    quanta = (groups / scales.clamp_min(1e-30)[:, :, None]).round().nan_to_num().clamp(-_LARGEST, _LARGEST)
    zero = _LARGEST + 1
    return GroupedMatrix(8, (quanta + zero).to(torch.uint8).flatten(1), scales, zero)
