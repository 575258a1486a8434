"""Product with weights of 4 bits, in groups of columns that share a scale: w = (q - zero) * scale, or w = table[q] * scale.

Checkpoints are repacked into this layout: a byte holds columns j (low) and j + 16 (high) of a block of 32, so both halves of a
tile are multiplied without reordering, by activations that are contiguous as well. Small integers are exact in every type, so
groups are multiplied without scales, and only their sums are scaled. A table has the 16 values of a float format (MXFP4, NF4).
Dims: T rows of activations, N outputs, K inputs, G columns of a group.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.split_k import store_product
from tetrad.worker_svc.kernels.tile_shapes import MAX_SPLIT_TILES, TileShape

BLOCK = 32
"""Number of columns that are packed together; group sizes are multiples of it, or SMALL_GROUP."""
SMALL_GROUP = BLOCK // 2


def pack_int4(quanta: torch.Tensor) -> torch.Tensor:
    """Pack quanta [N, K] from 0 to 15 into [N, K / 2] uint8."""
    low, high = quanta.to(torch.uint8).reshape(len(quanta), -1, 2, BLOCK // 2).unbind(2)
    return (low | (high << 4)).flatten(1)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Unpack packed quanta [N, K / 2] into [N, K] uint8."""
    bytes_ = packed.reshape(len(packed), -1, BLOCK // 2)
    return torch.stack([bytes_ & 15, bytes_ >> 4], 2).flatten(1)


def int4_matmul_reference(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    table: torch.Tensor | None = None,
    shape: TileShape,  # noqa: ARG001 - one signature for both
    tickets: torch.Tensor,  # noqa: ARG001 - as above
) -> torch.Tensor:
    """Return x W^T + bias [T, N], in x's type. Computed in float64.

    Args:
        x: [T, K] floats; rows may have gaps between them, but each row is contiguous.
        packed: [N, K / 2] uint8, contiguous; see pack_int4.
        scales: [K / G, N] floats; G is a multiple of 32, or 16.
        zeros: [K / G, N] uint8, 0 to 16; None: there is a table.
        bias: [N] or None.
        table: [16] in x's type, the values of quanta; None: there are zeros.
        shape: shape of the tiles.
        tickets: see split_k.
    """
    groups = torch.arange(x.shape[1], device=x.device) // (x.shape[1] // len(scales))
    quanta = unpack_int4(packed)
    values = quanta.double() if table is None else table.double()[quanta.int()]
    if zeros is not None:
        values = values - zeros.T[:, groups].double()
    total = x.double() @ (values * scales.T[:, groups].double()).T
    return (total if bias is None else total + bias.double()).to(x.dtype)


@triton.jit(do_not_specialize=["num_rows"])
def int4_matmul_kernel(
    x,
    packed,
    scales,
    zeros,
    table,
    bias,
    out,
    partial,
    tickets,
    num_rows,
    num_outputs,
    num_columns,
    stride_x,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply tile `program_id(0)` of rows and `program_id(1)` of outputs, along part `program_id(2)` of K.

    COLUMNS is a multiple of 32 and divides a group; it is 32 for groups of 16.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row = rows[:, None] < num_rows
    # A tile that extends beyond the outputs reads the last output again; these results are not stored.
    known_outputs = tl.minimum(outputs, num_outputs - 1)
    x_rows = x + rows.to(tl.int64)[:, None] * stride_x
    packed_rows = packed + known_outputs.to(tl.int64)[:, None] * (num_columns // 2)
    share = tl.cdiv(num_columns // COLUMNS, tl.num_programs(2)) * COLUMNS
    begin = tl.program_id(2) * share
    byte = tl.arange(0, COLUMNS // 2)[None, :]
    low_column = byte // 16 * 32 + byte % 16
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(begin, tl.minimum(begin + share, num_columns), COLUMNS):
        low_x = tl.load(x_rows + start + low_column, mask=is_row, other=0.0)
        high_x = tl.load(x_rows + start + low_column + 16, mask=is_row, other=0.0)
        quanta = tl.load(packed_rows + start // 2 + byte)
        of_group = start // GROUP * num_outputs + known_outputs
        low, high = weights_of(quanta, table, zeros + of_group, x.dtype.element_ty, HAS_TABLE)
        total += scaled_products(low_x, high_x, low, high, scales + of_group, num_outputs, GROUP, PRECISION)
    store_product(total, bias, out, partial, tickets, rows, outputs, num_rows, num_outputs, HAS_BIAS, IS_SPLIT)


@triton.jit
def scaled_products(low_x, high_x, low, high, scales, num_outputs, GROUP: tl.constexpr, PRECISION: tl.constexpr):
    """Return the products of both halves of the columns, times the scales of their groups.

    `scales` are pointers to those of the first group. With groups of 16 columns, each half of 32 columns is a group.
    """
    part = tl.dot(low_x, tl.trans(low), input_precision=PRECISION)
    if GROUP == 16:
        part *= tl.load(scales).to(tl.float32)[None, :]
        upper = tl.dot(high_x, tl.trans(high), input_precision=PRECISION)
        return part + upper * tl.load(scales + num_outputs).to(tl.float32)[None, :]
    part = tl.dot(high_x, tl.trans(high), part, input_precision=PRECISION)
    return part * tl.load(scales).to(tl.float32)[None, :]


@triton.jit
def weights_of(quanta, table, zeros, dtype: tl.constexpr, HAS_TABLE: tl.constexpr):
    """Return the weights, without scales, of the low and of the high bits of quanta [OUTPUTS, COLUMNS / 2].

    `table` and `zeros` are pointers: to the table, and to the zeros of the outputs.
    """
    if HAS_TABLE:
        low, high = tl.load(table + (quanta & 15).to(tl.int32)), tl.load(table + (quanta >> 4).to(tl.int32))
    else:
        zero = small_integer(tl.load(zeros), dtype)[:, None]
        low, high = small_integer(quanta & 15, dtype) - zero, small_integer(quanta >> 4, dtype) - zero
    return low, high


@triton.jit
def small_integer(value, dtype: tl.constexpr):
    """Return integers from 0 to 16 as floats; in 16 bits plus a constant, which cancels in differences.

    If the last bit of a float has the value 1, its last bits contain such an integer: setting them is faster than a conversion.
    """
    if dtype == tl.float16:
        return (value.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)  # 1024 + value
    if dtype == tl.bfloat16:
        return (value.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)  # 128 + value
    return value.to(dtype)


def int4_matmul(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    table: torch.Tensor | None = None,
    shape: TileShape,
    tickets: torch.Tensor,
) -> torch.Tensor:
    """See int4_matmul_reference."""
    (num_rows, num_columns), num_outputs = x.shape, len(packed)
    group_size = num_columns // len(scales)
    assert x.stride(1) == 1 and packed.is_contiguous() and packed.shape == (num_outputs, num_columns // 2)
    assert scales.is_contiguous() and scales.shape[1] == num_outputs
    assert (zeros is None) != (table is None), "values are shifted by zeros, or looked up in a table"
    assert zeros is None or (zeros.is_contiguous() and zeros.shape == scales.shape)
    assert table is None or table.dtype == x.dtype
    assert (group_size % BLOCK == 0 or group_size == SMALL_GROUP) and group_size * len(scales) == num_columns
    assert num_columns % BLOCK == 0
    shape = shape.for_values_of(x.element_size())
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(num_outputs, shape.outputs), shape.splits)
    assert shape.splits == 1 or grid[0] * grid[1] <= MAX_SPLIT_TILES
    partial = out
    if shape.splits > 1:
        partial = torch.empty((shape.splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    int4_matmul_kernel[grid](
        x,
        packed,
        scales,
        packed if zeros is None else zeros,
        x if table is None else table,
        out if bias is None else bias,
        out,
        partial,
        tickets,
        num_rows,
        num_outputs,
        num_columns,
        x.stride(0),
        GROUP=group_size,
        ROWS=shape.rows,
        OUTPUTS=shape.outputs,
        COLUMNS=min(shape.columns, max(group_size & -group_size, BLOCK)),
        IS_SPLIT=shape.splits > 1,
        HAS_TABLE=table is not None,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return out
