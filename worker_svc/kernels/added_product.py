"""Added product: a product with few rows, added to the residual stream; see few_rows.py.

Dims: T rows, D features of the residual stream, S tiles of a row, K inputs.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as torch names it
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.few_rows import multiply, options_of, start
from tetrad.worker_svc.kernels.scaled_stream import Scaled, scale_stream_reference
from tetrad.worker_svc.kernels.split_k import sum_parts
from tetrad.worker_svc.kernels.tile_shapes import MAX_SPLIT_TILES, TileShape


def added_product_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor,
    *,
    shape: TileShape,  # noqa: ARG001 - one signature for both
    tickets: torch.Tensor,  # noqa: ARG001 - as above
) -> Scaled:
    """Add the product x W^T + bias to the residual stream, in place, and return the stream before the next norm.

    Args:
        x: [T, K], contiguous.
        weight: [D, K], contiguous.
        bias: [D]; None: no bias.
        residual: [T, D], contiguous.
        norm: [D], weight of the norm.
        shape: shape of the tiles.
        tickets: see split_k.
    """
    residual += F.linear(x, weight, bias)
    return scale_stream_reference(residual, norm)


@triton.jit(do_not_specialize=["num_rows"])
def added_product_kernel(
    x, weight, bias, norm, residual, scaled, squares, partial, tickets, num_rows, num_outputs, num_columns,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, IS_SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr, PRECISION: tl.constexpr, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr,
):  # fmt: skip
    """Compute tile `program_id(0)` of rows and `program_id(1)` of outputs, along part `program_id(2)` of K."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    known = tl.minimum(outputs, num_outputs - 1)
    weight_rows = weight + known.to(tl.int64)[:, None] * num_columns
    share = tl.cdiv(tl.cdiv(num_columns, COLUMNS), tl.num_programs(2)) * COLUMNS
    begin = tl.program_id(2) * share
    end = tl.minimum(begin + share, num_columns)
    start(weight_rows, begin, tl.maximum(end, 1), IS_DEPENDENT, PREFETCHED)
    is_row = (rows < num_rows)[:, None]
    total = multiply(
        x + rows.to(tl.int64)[:, None] * num_columns, is_row, weight_rows, begin, end, num_columns,
        ROWS, OUTPUTS, COLUMNS, IS_EVEN, PRECISION,
    )  # fmt: skip
    inside = is_row & (outputs < num_outputs)[None, :]
    place = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    if IS_SPLIT:
        total, is_last = sum_parts(total, partial, tickets, place, inside, tl.cast(num_rows, tl.int64) * num_outputs)
        inside = inside & is_last
    if HAS_BIAS:
        total += tl.load(bias + known).to(tl.float32)[None, :]
    total = tl.where(inside, total + tl.load(residual + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(residual + place, total, mask=inside)
    tl.store(scaled + place, total * tl.load(norm + known).to(tl.float32)[None, :], mask=inside)
    is_mine = tl.max(inside.to(tl.int32), 1) > 0
    tl.store(squares + rows * tl.num_programs(1) + tl.program_id(1), tl.sum(total * total, 1), mask=is_mine)


def added_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    norm: torch.Tensor,
    *,
    shape: TileShape,
    tickets: torch.Tensor,
) -> Scaled:
    """See added_product_reference."""
    (num_rows, num_columns), num_outputs = x.shape, len(weight)
    assert x.is_contiguous() and weight.is_contiguous() and residual.is_contiguous() and norm.shape == (num_outputs,)
    assert weight.shape == (num_outputs, num_columns) and residual.shape == (num_rows, num_outputs)
    shape = shape.for_values_of(x.element_size())
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(num_outputs, shape.outputs), shape.splits)
    assert shape.splits == 1 or grid[0] * grid[1] <= MAX_SPLIT_TILES
    scaled = torch.empty_like(residual)
    squares = torch.empty((num_rows, grid[1]), dtype=torch.float32, device=x.device)
    partial = squares
    if shape.splits > 1:
        partial = torch.empty((shape.splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    added_product_kernel[grid](
        x,
        weight,
        norm if bias is None else bias,
        norm,
        residual,
        scaled,
        squares,
        partial,
        tickets,
        num_rows,
        num_outputs,
        num_columns,
        IS_SPLIT=shape.splits > 1,
        HAS_BIAS=bias is not None,
        **options_of(x, weight, shape),
    )
    return Scaled(scaled, squares)
