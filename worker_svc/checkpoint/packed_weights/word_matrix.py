"""Word matrix: values of few bits as checkpoints store them, in words or bytes; only the needed part is unpacked.

So a rank reads and unpacks its own rows or columns alone, and the cuda device unpacks them itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tetrad.worker_svc.checkpoint.packed_weights.grouped import BLOCK, GroupedMatrix, of_columns
from tetrad.worker_svc.checkpoint.packed_weights.words import pack, unpack, values_per_word


@dataclass(frozen=True, slots=True, eq=False)
class WordMatrix:
    """A matrix [R, C] with p values in a word; weight = scale * (value - zero), or, with a table, scale * table[value].

    Attributes:
        bits: bits of a value: 2, 4 or 8; p = 32 / bits, in bytes 8 / bits.
        words: [R, C / p] int32 or uint8, possibly in the mapped file's memory; [R / p, C] if words hold values of several rows.
        scales: [R, Q] float32, scales of Q groups of columns.
        zeros: [R, Q] uint8, or one value for all groups.
        table: [16] float32, or None.
        groups: [C] int64, the group of each column, for a matrix without a table; None: in order and equally large.
        holds_rows: whether a word has values of several rows.
        places: see unpack.
        flipped: the bits of a value that are stored inverted.
    """

    bits: int
    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | int = 0
    table: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    holds_rows: bool = False
    places: Sequence[int] | None = None
    flipped: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows, columns = self.words.shape
        return (rows * self._per_word, columns) if self.holds_rows else (rows, columns * self._per_word)

    @property
    def block(self) -> int:
        """See GroupedMatrix."""
        return BLOCK

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> "WordMatrix":
        """See GroupedMatrix; rows of shared words are packed again if they do not fill words in order."""
        zeros = choose(self.zeros) if isinstance(self.zeros, torch.Tensor) else self.zeros
        part = replace(self, scales=choose(self.scales), zeros=zeros)
        if not self.holds_rows:
            return replace(part, words=choose(self.words))
        chosen, unit = choose(torch.arange(self.shape[0])), self._per_word
        first, end = int(chosen[0]), int(chosen[-1]) + 1
        if first % unit or end % unit or not torch.equal(chosen, torch.arange(first, end)):
            return replace(part, words=pack(choose(self._quanta()), self.bits), holds_rows=False, places=None, flipped=0)
        return replace(part, words=self.words[first // unit : end // unit])

    def of_columns(self, first: int, end: int) -> "WordMatrix":
        """See GroupedMatrix. Columns whose groups are not in order keep the scales of all groups."""
        unit = 1 if self.holds_rows else self._per_word
        part = replace(self, words=self.words[:, first // unit : end // unit])
        if self.groups is not None:
            return replace(part, groups=self.groups[first:end])
        columns, zeros = self.shape[1], self.zeros
        group = columns // self.scales.shape[1]
        return replace(
            part,
            scales=of_columns(self.scales, group, columns, first, end),
            zeros=of_columns(zeros, group, columns, first, end) if isinstance(zeros, torch.Tensor) else zeros,
        )

    def to(self, device: torch.device) -> "WordMatrix":
        """Return the matrix on another device; it is unpacked there."""
        zeros = self.zeros.to(device) if isinstance(self.zeros, torch.Tensor) else self.zeros
        table, groups = (None if each is None else each.to(device) for each in (self.table, self.groups))
        return replace(
            self, words=self.words.to(device), scales=self.scales.to(device), zeros=zeros, table=table, groups=groups
        )

    def unpacked(self) -> tuple[GroupedMatrix, torch.Tensor | None]:
        """Return the matrix in groups that are in order, and the input of each of its columns, [P] int64; None: in order.

        If groups differ in size, each is filled up to a multiple of BLOCK columns with weights of 0 for input 0.
        """
        quanta = self._quanta()
        if self.groups is None:
            return GroupedMatrix(self.bits, quanta, self.scales, self.zeros, self.table), None
        order, places, groups, size = _in_order(self.groups, self.scales.shape[1])
        columns = order.new_zeros(len(groups) * size)
        columns[places] = order
        zeros = self.zeros
        if isinstance(zeros, torch.Tensor):
            zeros = zeros[:, groups]
            filled = zeros.repeat_interleave(size, 1)
        else:
            filled = quanta.new_full((len(quanta), len(columns)), zeros)
        filled[:, places] = quanta[:, order]
        return GroupedMatrix(self.bits, filled, self.scales[:, groups], zeros), columns

    def dequantized(self) -> torch.Tensor:
        """Return the weights [R, C] in float32."""
        if self.groups is None:
            return self.unpacked()[0].dequantized()
        zeros = self.zeros[:, self.groups].float() if isinstance(self.zeros, torch.Tensor) else self.zeros
        return (self._quanta().float() - zeros) * self.scales[:, self.groups]

    @property
    def _per_word(self) -> int:
        return values_per_word(self.words, self.bits)

    def _quanta(self) -> torch.Tensor:
        """Return the values [R, C] uint8."""
        words = self.words.T if self.holds_rows else self.words
        values = unpack(words, self.bits, self.places)
        if self.flipped:
            values ^= self.flipped
        return values.T.contiguous() if self.holds_rows else values


def _in_order(groups: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return an order of columns in which each group begins at a multiple of a size.

    Args:
        groups: [C] int64, the group of each column.
        num_groups: Q.

    Returns:
        The columns [C] by group, the place of each of them, the group of each `size` places [P / size], and the size.
    """
    counts, order = torch.bincount(groups, minlength=num_groups), groups.argsort(stable=True)
    sizes = set(counts[counts > 0].tolist())
    size = sizes.pop() if len(sizes) == 1 else BLOCK
    size = BLOCK if size % BLOCK else size
    num_blocks = -(-counts // size)
    # Of each group: its first place, and the number of columns before it.
    starts, before = ((each.cumsum(0) - each)[groups[order]] for each in (num_blocks * size, counts))
    places = starts + torch.arange(len(groups), device=groups.device) - before
    return order, places, torch.arange(num_groups, device=groups.device).repeat_interleave(num_blocks), size
