"""Product with weights of one byte: int8, or fp8 (e4m3), scaled by row, or by row and group of columns.

Activations are floats ("weight-only": weights are converted before the tensor core), or e4m3 with their own scales, which
multiplies twice as fast with many rows (Micikevicius et al., "FP8 formats for deep learning", 2022).
Dims: T rows of activations, N outputs, K inputs, G columns of a group, Q = ceil(K / G) groups; G = K: one scale per row.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.split_k import store_product
from tetrad.worker_svc.kernels.tile_shapes import MAX_SPLIT_TILES, TileShape


def byte_matmul_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    group: int,
    shape: TileShape,  # noqa: ARG001 - one signature for both
    tickets: torch.Tensor,  # noqa: ARG001 - as above
    row_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x W^T + bias [T, N], in dtype. Computed in float64.

    Args:
        x: [T, K], floats or e4m3; rows may have gaps between them, but each row is contiguous.
        weight: [N, K] int8 or e4m3, contiguous; uint8: e4m3's bits, for devices without this type.
        scales: [Q, N] floats.
        bias: [N] or None.
        dtype: type of the result.
        group: G, a multiple of 32, or K.
        shape: shape of the tiles.
        tickets: see split_k.
        row_scales: [Q, T] float32, the scales of x if it is quantized.
    """
    columns = torch.arange(x.shape[1], device=x.device) // group
    values = weight.view(torch.float8_e4m3fn) if weight.dtype == torch.uint8 else weight
    wide = values.double() * scales.double().T[:, columns]
    rows = x.double() if row_scales is None else x.double() * row_scales.double().T[:, columns]
    total = rows @ wide.T
    return (total if bias is None else total + bias.double()).to(dtype)


@triton.jit(do_not_specialize=["num_rows"])
def byte_matmul_kernel(
    x,
    row_scales,
    weight,
    scales,
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
    IS_EVEN: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Multiply tile `program_id(0)` of rows and `program_id(1)` of outputs, along part `program_id(2)` of K.

    GROUP is 0 if a row has one scale. IS_EVEN: COLUMNS divides K.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row = rows[:, None] < num_rows
    # A tile that extends beyond the outputs reads the last output again; these results are not stored.
    known_outputs = tl.minimum(outputs, num_outputs - 1)
    x_rows = x + rows.to(tl.int64)[:, None] * stride_x
    weight_rows = weight + known_outputs.to(tl.int64)[:, None] * num_columns
    share = tl.cdiv(tl.cdiv(num_columns, COLUMNS), tl.num_programs(2)) * COLUMNS
    begin = tl.program_id(2) * share
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(begin, tl.minimum(begin + share, num_columns), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)[None, :]
        if IS_EVEN:
            a = tl.load(x_rows + columns, mask=is_row, other=0.0)
            w = tl.load(weight_rows + columns)
        else:
            a = tl.load(x_rows + columns, mask=is_row & (columns < num_columns), other=0.0)
            w = tl.load(weight_rows + columns, mask=columns < num_columns, other=0.0)
        w = tl.trans(widen(w, a.dtype))
        if GROUP == 0:
            total = tl.dot(a, w, total, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE)
        else:
            part = tl.dot(a, w, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE)
            group = start // GROUP
            part *= tl.load(scales + group * num_outputs + known_outputs).to(tl.float32)[None, :]
            if HAS_ROW_SCALES:
                part *= tl.load(row_scales + group * num_rows + rows, mask=rows < num_rows, other=0.0)[:, None]
            total += part
    if GROUP == 0:
        total *= tl.load(scales + known_outputs).to(tl.float32)[None, :]
        if HAS_ROW_SCALES:
            total *= tl.load(row_scales + rows, mask=rows < num_rows, other=0.0)[:, None]
    store_product(total, bias, out, partial, tickets, rows, outputs, num_rows, num_outputs, HAS_BIAS, IS_SPLIT)


@triton.jit
def widen(weight, dtype: tl.constexpr):
    """Convert weights of one byte to the type of the activations, exactly."""
    if weight.dtype == tl.uint8:
        # e4m3's exponent and fraction, moved to fp16's places, give a value 2^8 times too small: the biases differ by 8.
        bits = weight.to(tl.uint16)
        small = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        return (small.to(tl.float32) * 256.0).to(dtype)
    return weight.to(dtype)


def byte_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    group: int,
    shape: TileShape,
    tickets: torch.Tensor,
    row_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """See byte_matmul_reference."""
    (num_rows, num_columns), num_outputs = x.shape, len(weight)
    is_grouped = group < num_columns
    assert x.stride(1) == 1 and weight.is_contiguous() and weight.shape == (num_outputs, num_columns)
    assert scales.is_contiguous() and scales.shape == (-(-num_columns // group), num_outputs)
    assert row_scales is None or (row_scales.is_contiguous() and row_scales.shape == (len(scales), num_rows))
    shape = shape.for_values_of(x.element_size())
    out = torch.empty((num_rows, num_outputs), dtype=dtype, device=x.device)
    if not num_rows:
        return out
    columns = min(shape.columns, group & -group) if is_grouped else shape.columns
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(num_outputs, shape.outputs), shape.splits)
    assert shape.splits == 1 or grid[0] * grid[1] <= MAX_SPLIT_TILES
    partial = out
    if shape.splits > 1:
        partial = torch.empty((shape.splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    byte_matmul_kernel[grid](
        x,
        scales if row_scales is None else row_scales,
        weight,
        scales,
        out if bias is None else bias,
        out,
        partial,
        tickets,
        num_rows,
        num_outputs,
        num_columns,
        x.stride(0),
        GROUP=group if is_grouped else 0,
        ROWS=shape.rows,
        OUTPUTS=shape.outputs,
        COLUMNS=columns,
        IS_SPLIT=shape.splits > 1,
        IS_EVEN=num_columns % columns == 0,
        HAS_ROW_SCALES=row_scales is not None,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        # Hopper sums fp8 products in few bits unless partial sums are added in float32, here after each tile of K.
        MAX_IMPRECISE=columns if row_scales is not None else 0,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    return out
