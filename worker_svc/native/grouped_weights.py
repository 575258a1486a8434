"""Grouped weights: the matrices of quantized checkpoints, packed into the formats of the native kernels."""

import torch

from tetrad.worker_svc.checkpoint.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.native.formats import Format
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix, pack_quanta

_BLOCK = 32
_TABLE_TOP = 127
_MOST_IN_HALVES = 60_000.0


def pack_grouped(team: Team, matrix: GroupedMatrix, *, paired: bool = False) -> NativeMatrix:
    """Pack a matrix whose groups are multiples of 32 columns, or 16: weights of up to 4 bits take 4 bits, weights of 8 take 8.

    Scales are in half precision if they are exact in it, otherwise in float32. The values of a table are rounded to 8 bits
    unless they are whole numbers that fit 8 bits.
    """
    layout, scales, minima = _layout(matrix)
    repeats = matrix.group // layout.block
    arrays = [None if each is None else each.repeat_interleave(repeats, 1).numpy() for each in (scales, minima)]
    quanta = matrix.quanta.numpy()
    assert arrays[0] is not None
    return pack_quanta(team, quanta, arrays[0], arrays[1], layout=layout, paired=paired)


def _layout(matrix: GroupedMatrix) -> tuple[Format, torch.Tensor, torch.Tensor | None]:
    """Return the format of a matrix, its scales and its minima."""
    scales, zero = matrix.scales, _only_zero(matrix)
    if matrix.table is not None:
        step = _step(matrix.table)
        values = (matrix.table / step).round().nan_to_num().int().tolist()
        return Format(4, block=min(matrix.group, _BLOCK), scale_bytes=4, table=tuple(values)), scales * step, None
    bits = 4 if matrix.bits <= 4 else 8
    is_half = torch.equal(scales.half().float(), scales)
    if zero is not None and is_half:
        return Format(bits, zero=zero), scales, None
    zeros = matrix.zeros.float() if isinstance(matrix.zeros, torch.Tensor) else matrix.zeros
    minima = -scales * zeros
    fits = bits == 4 and is_half and bool(minima.abs().max() < _MOST_IN_HALVES)
    return Format(bits, scale_bytes=2 if fits else 4, has_minimum=True), scales, minima


def _step(table: torch.Tensor) -> torch.Tensor:
    """Return the step size of a table's values after rounding to 8 bits."""
    top = table.abs().max()
    if torch.equal(table, table.round()) and top <= _TABLE_TOP:
        return torch.tensor(1.0)
    return top.clamp_min(1e-30) / _TABLE_TOP


def _only_zero(matrix: GroupedMatrix) -> int | None:
    """Return the common zero of all groups; None if they differ."""
    if not isinstance(matrix.zeros, torch.Tensor):
        return matrix.zeros
    first = int(matrix.zeros.flatten()[0])
    return first if bool((matrix.zeros == first).all()) else None
