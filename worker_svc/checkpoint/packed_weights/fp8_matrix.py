"""Fp8 matrix: values in e4m3 as checkpoints store them, with scales of rows or of groups of columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tetrad.worker_svc.checkpoint.packed_weights.grouped import BLOCK, group_of_columns, of_columns


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Matrix:
    """A matrix [R, C] in e4m3, with a scale for each row, or for each group of columns of a row.

    Attributes:
        bits: [R, C] uint8, e4m3's bits; possibly in the mapped file's memory.
        scales: [R, ceil(C / G)] float32.
        group: G; C or more: the whole row.
    """

    bits: torch.Tensor
    scales: torch.Tensor
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows, columns = self.bits.shape
        return rows, columns

    @property
    def block(self) -> int:
        """See GroupedMatrix; where a whole matrix cannot be rounded to 8 bits in blocks, columns may be separated anywhere."""
        return 1 if self.shape[1] % BLOCK else BLOCK

    def dequantized(self) -> torch.Tensor:
        """Return the weights [R, C] in float32."""
        scales = self.scales.repeat_interleave(self.group, 1)[:, : self.shape[1]] if self.scales.shape[1] > 1 else self.scales
        return self.bits.view(torch.float8_e4m3fn).float() * scales

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> "Fp8Matrix":
        """See GroupedMatrix."""
        return replace(self, bits=choose(self.bits), scales=choose(self.scales))

    def of_columns(self, first: int, end: int) -> "Fp8Matrix":
        """See GroupedMatrix."""
        columns = self.shape[1]
        scales = of_columns(self.scales, self.group, columns, first, end)
        group = group_of_columns(self.group, columns, first, end) if self.scales.shape[1] > 1 else end - first
        return Fp8Matrix(self.bits[:, first:end], scales, group)
