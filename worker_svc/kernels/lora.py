"""LoRA products of a batch whose rows have different adapters, or none: shrink to the adapters' rank, then expand and add.

The host groups rows by adapter into tiles, so each program multiplies rows of one adapter; rows of the base model are in no
tile and do not change. Shapes depend only on the number of rows: a recorded graph serves any mixture of adapters. Chen et al.,
"Punica: Multi-Tenant LoRA Serving", 2023.
Dims: T rows, K inputs, N outputs, S adapters, P modules side by side, R rank (padded), M tiles of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

FEW_ROWS, MANY_ROWS = 16, 64
"""Rows in a tile: the smallest number for a tensor core, and the number for long prompts."""
RANK_MULTIPLE = 16
"""Ranks are padded to multiples of this number."""

_MOST_FEW = 128  # largest number of rows in a step with small tiles
_OUTPUTS = 64
_RANKS = 64  # ranks that an expanding program multiplies at once
_COLUMN_BYTES = 256
_MAX_SPLITS = 8
_STEPS_OF_SPLIT = 4


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows grouped by adapter, for the kernels.

    Attributes:
        order: [T] int32, the rows, grouped by adapter.
        tiles: [M, 3] int32: an adapter's slot, the begin of its rows in `order`, and their number; slot -1: no rows.
        rows_of_tile: largest number of rows in a tile.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows_of_tile: int


def rows_of_tiles(num_rows: int) -> int:
    """Return the number of rows in a tile, for a step of `num_rows`."""
    return FEW_ROWS if num_rows <= _MOST_FEW else MANY_ROWS


def padded_rank(rank: int) -> int:
    """Return the rank that adapters of up to `rank` are padded to."""
    multiple = RANK_MULTIPLE if rank <= RANK_MULTIPLE else 32 if rank <= 32 else _RANKS
    return -(-rank // multiple) * multiple


def output_tiles(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first output, end of its module, module) for each tile of the concatenated outputs of modules of these sizes."""
    tiles, first = [], 0
    for part, size in enumerate(sizes):
        tiles += [(start, first + size, part) for start in range(first, first + size, _OUTPUTS)]
        first += size
    return tiles


def num_splits(num_rows: int, num_columns: int, value_bytes: int) -> int:
    """Return the number of parts that K is split into: with few rows, the device would be idle without splits."""
    columns = _COLUMN_BYTES // value_bytes
    return max(1, min(_MAX_SPLITS, num_columns // (columns * _STEPS_OF_SPLIT))) if num_rows <= _MOST_FEW else 1


def shrink_reference(x: torch.Tensor, a: torch.Tensor, groups: RowGroups) -> torch.Tensor:
    """Return x A^T in float32 [parts of K, T, P R], to be summed over the parts; rows without an adapter are undefined.

    Args:
        x: [T, K]; rows may have gaps between them, but each row is contiguous.
        a: [S, P R, K], in the type of x; adapters may have gaps between them.
        groups: the rows, grouped by adapter.
    """
    splits = num_splits(len(x), x.shape[1], x.element_size())
    out = torch.zeros(splits, len(x), a.shape[1], dtype=torch.float32, device=x.device)
    share = _share(x, splits)
    for slot, begin, count in groups.tiles.tolist():
        if slot >= 0:
            rows = groups.order[begin : begin + count].long()
            for split in range(splits):
                part = slice(split * share, (split + 1) * share)
                out[split, rows] = x[rows, part].float() @ a[slot, :, part].float().T
    return out


def expand_reference(
    shrunk: torch.Tensor, b: torch.Tensor, outputs: torch.Tensor, groups: RowGroups, y: torch.Tensor
) -> torch.Tensor:
    """Add the sum of `shrunk` times B^T to y in place, and return y; rows without an adapter do not change.

    Args:
        shrunk: [parts of K, T, P R], see shrink_reference.
        b: [S, N, R], with the concatenated outputs of the modules; adapters may have gaps between them.
        outputs: [tiles, 3] int32, see output_tiles.
        groups: the rows, grouped by adapter.
        y: [T, N], contiguous.
    """
    rank = b.shape[2]
    for slot, begin, count in groups.tiles.tolist():
        if slot >= 0:
            rows = groups.order[begin : begin + count].long()
            for first, end, part in outputs.tolist():
                last = min(first + _OUTPUTS, end)
                its = shrunk[:, rows, part * rank : (part + 1) * rank].sum(0)
                y[rows, first:last] = (y[rows, first:last].float() + its @ b[slot, first:last].float().T).to(y.dtype)
    return y


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["order", "tiles"])
def shrink_kernel(
    x,
    a,
    out,
    order,
    tiles,
    num_rows,
    num_outputs,
    num_columns,
    stride_x,
    stride_a,
    share,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply tile `program_id(0)` of rows and `program_id(1)` of ranks, along part `program_id(2)` of K."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    if slot >= 0:
        places = tl.arange(0, ROWS)
        is_row = places < tl.load(tile + 2)
        rows = tl.load(order + tl.load(tile + 1) + places, mask=is_row, other=0).to(tl.int64)
        outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        is_output = outputs < num_outputs
        x_rows = x + rows[:, None] * stride_x
        a_rows = a + slot * stride_a + outputs.to(tl.int64)[:, None] * num_columns
        begin = tl.program_id(2) * share
        end = tl.minimum(begin + share, num_columns)
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(begin, end, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)[None, :]
            inside = columns < end
            values = tl.load(x_rows + columns, mask=is_row[:, None] & inside, other=0.0)
            weights = tl.load(a_rows + columns, mask=is_output[:, None] & inside, other=0.0)
            total = tl.dot(values, tl.trans(weights), total, input_precision=PRECISION)
        size = tl.cast(num_rows, tl.int64) * num_outputs
        place = tl.program_id(2) * size + rows[:, None] * num_outputs + outputs[None, :]
        tl.store(out + place, total, mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["order", "tiles"])
def expand_kernel(
    shrunk,
    b,
    y,
    order,
    tiles,
    output_tiles,
    num_rows,
    num_outputs,
    width,
    stride_b,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add to tile `program_id(0)` of rows and `program_id(1)` of outputs; `width` is P R; RANKS ranks are computed at once."""
    tile = tiles + tl.program_id(0) * 3
    slot = tl.load(tile).to(tl.int64)
    if slot >= 0:
        places = tl.arange(0, ROWS)
        is_row = places < tl.load(tile + 2)
        rows = tl.load(order + tl.load(tile + 1) + places, mask=is_row, other=0).to(tl.int64)
        its = output_tiles + tl.program_id(1) * 3
        outputs = tl.load(its) + tl.arange(0, OUTPUTS)
        is_output = outputs < tl.load(its + 1)
        first_rank = tl.load(its + 2) * RANK
        size = tl.cast(num_rows, tl.int64) * width
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, RANK, RANKS):
            ranks = start + tl.arange(0, RANKS)
            place = rows[:, None] * width + (first_rank + ranks)[None, :]
            values = tl.zeros([ROWS, RANKS], tl.float32)
            for split in range(SPLITS):
                values += tl.load(shrunk + split * size + place, mask=is_row[:, None], other=0.0)
            b_rows = b + slot * stride_b + outputs.to(tl.int64)[:, None] * RANK + ranks[None, :]
            weights = tl.load(b_rows, mask=is_output[:, None], other=0.0).to(tl.float32)
            total = tl.dot(values, tl.trans(weights), total, input_precision=PRECISION)
        inside = is_row[:, None] & is_output[None, :]
        target = y + rows[:, None] * num_outputs + outputs[None, :]
        tl.store(target, tl.load(target, mask=inside, other=0.0).to(tl.float32) + total, mask=inside)


def shrink(x: torch.Tensor, a: torch.Tensor, groups: RowGroups) -> torch.Tensor:
    """See shrink_reference."""
    (num_rows, num_columns), num_outputs = x.shape, a.shape[1]
    assert x.stride(1) == a.stride(2) == 1 and a.stride(1) == num_columns == a.shape[2] and x.dtype == a.dtype
    splits = num_splits(num_rows, num_columns, x.element_size())
    out = torch.empty(splits, num_rows, num_outputs, dtype=torch.float32, device=x.device)
    outputs = min(_OUTPUTS, triton.next_power_of_2(num_outputs))
    shrink_kernel[(len(groups.tiles), triton.cdiv(num_outputs, outputs), splits)](
        x,
        a,
        out,
        groups.order,
        groups.tiles,
        num_rows,
        num_outputs,
        num_columns,
        x.stride(0),
        a.stride(0),
        _share(x, splits),
        ROWS=groups.rows_of_tile,
        OUTPUTS=outputs,
        COLUMNS=_COLUMN_BYTES // x.element_size(),
        PRECISION=_precision(x),
        num_warps=4,
        num_stages=3,
    )
    return out


def expand(shrunk: torch.Tensor, b: torch.Tensor, outputs: torch.Tensor, groups: RowGroups, y: torch.Tensor) -> torch.Tensor:
    """See expand_reference."""
    splits, num_rows, width = shrunk.shape
    rank = b.shape[2]
    assert shrunk.is_contiguous() and y.is_contiguous() and b.stride(2) == 1 and b.stride(1) == rank
    assert y.shape == (num_rows, b.shape[1]) and outputs.is_contiguous()
    expand_kernel[(len(groups.tiles), len(outputs))](
        shrunk,
        b,
        y,
        groups.order,
        groups.tiles,
        outputs,
        num_rows,
        y.shape[1],
        width,
        b.stride(0),
        SPLITS=splits,
        RANK=rank,
        RANKS=min(rank, _RANKS),
        ROWS=groups.rows_of_tile,
        OUTPUTS=_OUTPUTS,
        PRECISION=_precision(b),
        num_warps=4,
    )
    return y


def _share(x: torch.Tensor, splits: int) -> int:
    """Return the number of columns in a part of K, a multiple of a program's columns."""
    columns = _COLUMN_BYTES // x.element_size()
    return -(-x.shape[1] // (splits * columns)) * columns


def _precision(values: torch.Tensor) -> str:
    return "ieee" if values.dtype == torch.float32 else "tf32"
