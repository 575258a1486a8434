"""Kernels for few rows that multiply the normed residual stream by a weight; few_rows.py gives the whole of a layer.

    normed_qkv      with bias, rotation, and the write of keys and values to their pages
    normed_product  with bias: for heads with norms, which another kernel applies before the rotation
    normed_gated    of gate and up, with silu(gate) * up

Dims: T rows, D features of the residual stream, S tiles of a row, N outputs, H query heads, K kv heads, R rotary_dim.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as torch names it
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.activation import silu_mul_reference
from tetrad.worker_svc.kernels.few_rows import multiply, options_of, start
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache_reference
from tetrad.worker_svc.kernels.scaled_stream import Scaled, normed, scale_of
from tetrad.worker_svc.kernels.tile_shapes import TileShape


def normed_qkv_reference(
    scaled: Scaled,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    num_heads: int,
    *,
    eps: float,
    shape: TileShape,  # noqa: ARG001 - one signature for both
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Return the rotated queries [T, H, head size] of the normed residual stream; write keys and values to the cache.

    Args:
        scaled: the residual stream.
        weight: [(H + 2 * K) * head size, D], contiguous: queries, keys, values.
        bias: one value for each row of `weight`; None: no bias.
        cos_sin, slots, cache, num_heads, key_scale, value_scale: see rotate_and_cache_reference.
        eps: epsilon of the RMSNorm.
        shape: shape of the tiles; it has one part of K.
    """
    head_dim = cache.shape[4]
    qkv = F.linear(normed(scaled, eps), weight, bias)
    rotate_and_cache_reference(qkv, cos_sin, slots, cache, num_heads, key_scale, value_scale)
    return qkv[:, : num_heads * head_dim].view(len(qkv), num_heads, head_dim)


def normed_product_reference(
    scaled: Scaled,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    shape: TileShape,  # noqa: ARG001 - one signature for both
) -> torch.Tensor:
    """Return the product [T, N] of the normed residual stream.

    Args:
        scaled: the residual stream.
        weight: [N, D], contiguous.
        bias: [N]; None: no bias.
        eps: epsilon of the RMSNorm.
        shape: shape of the tiles; it has one part of K.
    """
    return F.linear(normed(scaled, eps), weight, bias)


def normed_gated_reference(
    scaled: Scaled,
    weight: torch.Tensor,
    *,
    eps: float,
    shape: TileShape,  # noqa: ARG001 - one signature for both
) -> torch.Tensor:
    """Return silu(gate) * up [T, I] of the normed residual stream.

    Args:
        scaled: the residual stream.
        weight: [2 * I, D], contiguous: gate, up.
        eps: epsilon of the RMSNorm.
        shape: shape of the tiles; `outputs` counts rows of `weight`. It has one part of K.
    """
    return silu_mul_reference(F.linear(normed(scaled, eps), weight))


@triton.jit
def normed_tile(
    x, squares, weight, bias, rows, outputs, num_rows, num_columns, num_tiles, eps, TILES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr,
):  # fmt: skip
    """Wait for the predecessor, and return a tile [ROWS, OUTPUTS] of the product of the normed stream, float32.

    Args:
        x, squares: the scaled stream.
        weight, bias: rows of the weight, and their biases.
        rows: [ROWS], the rows of the tile.
        outputs: [OUTPUTS] int64, the rows of the weight, each below their number.
        num_rows, num_columns, num_tiles: T, D, S.
        eps: epsilon of the norm.
        TILES: S, rounded up to a power of two.
    """
    weight_rows = weight + outputs[:, None] * num_columns
    start(weight_rows, 0, num_columns, IS_DEPENDENT, PREFETCHED)
    total = multiply(
        x + rows.to(tl.int64)[:, None] * num_columns, (rows < num_rows)[:, None], weight_rows, 0, num_columns, num_columns,
        ROWS, OUTPUTS, COLUMNS, IS_EVEN, PRECISION,
    )  # fmt: skip
    total *= scale_of(squares, rows, num_rows, num_tiles, num_columns, eps, TILES)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + outputs).to(tl.float32)[None, :]
    return total


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def normed_qkv_kernel(
    x, squares, weight, bias, cos_sin, slots, query, cache,
    num_rows, num_columns, num_tiles, eps, key_scale, value_scale,
    QUERY_SIZE: tl.constexpr, KEY_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr,
):  # fmt: skip
    """Compute tile `program_id(0)` of rows and `program_id(1)` of outputs, which are pairs of neighbours in a rotation."""
    num_outputs = QUERY_SIZE + 2 * KEY_SIZE
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    known = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    is_row = (rows < num_rows)[:, None]
    total = normed_tile(
        x, squares, weight, bias, rows, known, num_rows, num_columns, num_tiles, eps, TILES,
        ROWS, OUTPUTS, COLUMNS, HAS_BIAS, IS_EVEN, PRECISION, IS_DEPENDENT, PREFETCHED,
    )  # fmt: skip

    firsts = tl.program_id(1) * OUTPUTS + 2 * tl.arange(0, OUTPUTS // 2)
    even, odd = tl.split(tl.reshape(total, [ROWS, OUTPUTS // 2, 2]))
    dims = firsts % HEAD_DIM
    turns = ((dims < ROTARY_DIM) & (firsts < QUERY_SIZE + KEY_SIZE))[None, :] & is_row
    angles = cos_sin + rows.to(tl.int64)[:, None] * ROTARY_DIM + (dims // 2)[None, :]
    cos = tl.load(angles, mask=turns, other=1.0)
    sin = tl.load(angles + ROTARY_DIM // 2, mask=turns, other=0.0)
    turned = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), [ROWS, OUTPUTS])

    is_query = (outputs < QUERY_SIZE)[None, :]
    tl.store(query + rows.to(tl.int64)[:, None] * QUERY_SIZE + outputs[None, :], turned, mask=is_row & is_query)
    slot = tl.load(slots + rows, mask=rows < num_rows, other=-1)[:, None]
    scale = tl.where(outputs < QUERY_SIZE + KEY_SIZE, key_scale, value_scale)[None, :]
    target = cache + slot * (2 * KEY_SIZE) + (outputs - QUERY_SIZE)[None, :]
    tl.store(target, turned / scale, mask=(slot >= 0) & (is_query == 0) & (outputs < num_outputs)[None, :])


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def normed_product_kernel(
    x, squares, weight, bias, out, num_rows, num_outputs, num_columns, num_tiles, eps, TILES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr,
):  # fmt: skip
    """Compute tile `program_id(0)` of rows and `program_id(1)` of outputs."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    known = tl.minimum(outputs, num_outputs - 1).to(tl.int64)
    is_row = (rows < num_rows)[:, None]
    total = normed_tile(
        x, squares, weight, bias, rows, known, num_rows, num_columns, num_tiles, eps, TILES,
        ROWS, OUTPUTS, COLUMNS, HAS_BIAS, IS_EVEN, PRECISION, IS_DEPENDENT, PREFETCHED,
    )  # fmt: skip
    place = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out + place, total, mask=is_row & (outputs < num_outputs)[None, :])


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def normed_gated_kernel(
    x, squares, weight, out, num_rows, num_features, num_columns, num_tiles, eps, TILES: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, IS_EVEN: tl.constexpr, PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr,
):  # fmt: skip
    """Compute tile `program_id(0)` of rows and `program_id(1)` of features, with gates and ups side by side."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * (OUTPUTS // 2)
    each = tl.arange(0, OUTPUTS)
    known = tl.minimum(first + each // 2, num_features - 1).to(tl.int64) + (each % 2) * num_features
    is_row = (rows < num_rows)[:, None]
    total = normed_tile(
        x, squares, weight, x, rows, known, num_rows, num_columns, num_tiles, eps, TILES,
        ROWS, OUTPUTS, COLUMNS, False, IS_EVEN, PRECISION, IS_DEPENDENT, PREFETCHED,
    )  # fmt: skip
    gate, up = tl.split(tl.reshape(total, [ROWS, OUTPUTS // 2, 2]))
    features = first + tl.arange(0, OUTPUTS // 2)
    place = rows.to(tl.int64)[:, None] * num_features + features[None, :]
    tl.store(out + place, gate * tl.sigmoid(gate) * up, mask=is_row & (features < num_features)[None, :])


def normed_qkv(
    scaled: Scaled,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    num_heads: int,
    *,
    eps: float,
    shape: TileShape,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """See normed_qkv_reference."""
    x, (num_rows, num_columns), (num_kv_heads, head_dim) = scaled.values, scaled.values.shape, cache.shape[3:]
    query_size, key_size = num_heads * head_dim, num_kv_heads * head_dim
    assert x.is_contiguous() and weight.is_contiguous() and cache.is_contiguous() and cos_sin.is_contiguous()
    assert weight.shape == (query_size + 2 * key_size, num_columns) and shape.splits == 1
    assert cos_sin.shape[1] % 2 == 0 and cos_sin.shape[1] <= head_dim and head_dim % 2 == 0
    query = torch.empty((num_rows, num_heads, head_dim), dtype=x.dtype, device=x.device)
    shape = shape.for_values_of(x.element_size())
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(len(weight), shape.outputs))
    normed_qkv_kernel[grid](
        x,
        scaled.squares,
        weight,
        x if bias is None else bias,
        cos_sin,
        slots,
        query,
        cache,
        num_rows,
        num_columns,
        scaled.squares.shape[1],
        eps,
        key_scale,
        value_scale,
        QUERY_SIZE=query_size,
        KEY_SIZE=key_size,
        HEAD_DIM=head_dim,
        ROTARY_DIM=cos_sin.shape[1],
        TILES=triton.next_power_of_2(scaled.squares.shape[1]),
        HAS_BIAS=bias is not None,
        **options_of(x, weight, shape),
    )
    return query


def normed_product(
    scaled: Scaled, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float, shape: TileShape
) -> torch.Tensor:
    """See normed_product_reference."""
    x, (num_rows, num_columns), num_outputs = scaled.values, scaled.values.shape, len(weight)
    assert x.is_contiguous() and weight.is_contiguous()
    assert weight.shape == (num_outputs, num_columns) and shape.splits == 1
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    shape = shape.for_values_of(x.element_size())
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(num_outputs, shape.outputs))
    normed_product_kernel[grid](
        x,
        scaled.squares,
        weight,
        x if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        num_columns,
        scaled.squares.shape[1],
        eps,
        TILES=triton.next_power_of_2(scaled.squares.shape[1]),
        HAS_BIAS=bias is not None,
        **options_of(x, weight, shape),
    )
    return out


def normed_gated(scaled: Scaled, weight: torch.Tensor, *, eps: float, shape: TileShape) -> torch.Tensor:
    """See normed_gated_reference."""
    x, (num_rows, num_columns), num_features = scaled.values, scaled.values.shape, len(weight) // 2
    assert x.is_contiguous() and weight.is_contiguous()
    assert weight.shape == (2 * num_features, num_columns) and shape.splits == 1
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    shape = shape.for_values_of(x.element_size())
    grid = (triton.cdiv(num_rows, shape.rows), triton.cdiv(len(weight), shape.outputs))
    normed_gated_kernel[grid](
        x,
        scaled.squares,
        weight,
        out,
        num_rows,
        num_features,
        num_columns,
        scaled.squares.shape[1],
        eps,
        TILES=triton.next_power_of_2(scaled.squares.shape[1]),
        **options_of(x, weight, shape),
    )
    return out
