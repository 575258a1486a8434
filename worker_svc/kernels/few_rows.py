"""The products of a layer with few rows, each with the small operations around it: five launches a layer, attention included.

With few rows, a product takes the time in which its weights are read, and the small kernels between products take longer than
their bytes: a launch each. So three kernels compute all of a layer but attention, which runs between the first two:

    normed_qkv      RMSNorm, product, bias, rotation, and the write of keys and values to their pages
    normed_product  RMSNorm, product and bias: for heads with norms, which another kernel applies before the rotation
    added_product   product, and addition to the residual stream; for the output of attention, and at the end of the layer
    normed_gated    RMSNorm, the products of gate and up, and silu(gate) * up

The norm is divided among kernels. Who adds to the residual stream also writes the stream times the norm's weight, and the sums
of squares of its tiles. Who multiplies reads the first, and scales its sums by what follows from the second. The stream times
the weight may exceed the range of float16, so float16 has no such products.

Weights do not depend on the predecessor, so each kernel begins to load them before it waits for it (dependent_launch.py).
Dims: T rows, D features of the residual stream, S tiles of a row, N outputs, K inputs, H query heads, K kv heads, R rotary_dim.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as torch names it
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.activation import silu_mul_reference
from tetrad.worker_svc.kernels.dependent_launch import dependent_launch, prefetch, wait_for_predecessor
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache_reference
from tetrad.worker_svc.kernels.split_k import sum_parts
from tetrad.worker_svc.kernels.tile_shapes import MAX_SPLIT_TILES, TileShape

_PREFETCHED_BYTES = 20 << 20
"""The weights that all programs of a product prefetch together: less than a Hopper's L2 cache, which has 50 MiB."""
_LINE = 64  # values of 16 bits in a cache line


class Scaled(NamedTuple):
    """A residual stream before a norm.

    Attributes:
        values: [T, D], the stream times the weight of the norm, in its type.
        squares: [T, S] float32; their sum is that of the squares of a row of the stream.
    """

    values: torch.Tensor
    squares: torch.Tensor


def scale_stream_reference(residual: torch.Tensor, norm: torch.Tensor) -> Scaled:
    """Return the residual stream [T, D] before a norm of this weight [D]; S = 1."""
    wide = residual.float()
    return Scaled((wide * norm.float()).to(residual.dtype), wide.square().sum(1, keepdim=True))


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
    qkv = F.linear(_normed(scaled, eps), weight, bias)
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
    return F.linear(_normed(scaled, eps), weight, bias)


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
    return silu_mul_reference(F.linear(_normed(scaled, eps), weight))


def _normed(scaled: Scaled, eps: float) -> torch.Tensor:
    values, squares = scaled
    scale = torch.rsqrt(squares.sum(1, keepdim=True) / values.shape[1] + eps)
    return (values.float() * scale).to(values.dtype)


@triton.jit
def scale_stream_kernel(residual, norm, scaled, squares, num_features, BLOCK: tl.constexpr):
    """Compute row `program_id(0)`; see scale_stream_reference."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < num_features
    value = tl.load(residual + row * num_features + at, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row * num_features + at, value * gain, mask=inside)
    tl.store(squares + row, tl.sum(value * value, 0))


@triton.jit
def multiply(
    x_rows, is_row, weight_rows, begin, end, num_columns,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, IS_EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the product [ROWS, OUTPUTS] along columns `begin` to `end`.

    Args:
        x_rows: pointers [ROWS, 1] to the first columns of rows.
        is_row: [ROWS, 1]; other rows are zeros.
        weight_rows: pointers [OUTPUTS, 1] to the first columns of outputs.
        begin, end: multiples of COLUMNS, or the end of a row.
        num_columns: K.
    """
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(begin, end, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)[None, :]
        if IS_EVEN:
            a = tl.load(x_rows + columns, mask=is_row, other=0.0)
            w = tl.load(weight_rows + columns)
        else:
            a = tl.load(x_rows + columns, mask=is_row & (columns < num_columns), other=0.0)
            w = tl.load(weight_rows + columns, mask=columns < num_columns, other=0.0)
        total = tl.dot(a, tl.trans(w), total, input_precision=PRECISION)
    return total


@triton.jit
def start(weight_rows, begin, end, IS_DEPENDENT: tl.constexpr, PREFETCHED: tl.constexpr, LINE: tl.constexpr = _LINE):
    """Prefetch the first PREFETCHED columns from `begin` on, at most to `end`, and wait for the predecessor."""
    if IS_DEPENDENT:
        lines = tl.minimum(begin + LINE * tl.arange(0, PREFETCHED // LINE), end - 1)
        prefetch(weight_rows + lines[None, :])
    wait_for_predecessor(IS_DEPENDENT)


@triton.jit
def scale_of(squares, rows, num_rows, num_tiles, num_features, eps, TILES: tl.constexpr):
    """Return the factor [ROWS] of the norm of rows."""
    tiles = tl.arange(0, TILES)
    inside = (rows < num_rows)[:, None] & (tiles < num_tiles)[None, :]
    parts = tl.load(squares + rows[:, None] * num_tiles + tiles[None, :], mask=inside, other=0.0)
    return 1 / tl.sqrt(tl.sum(parts, 1) / num_features + eps)


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
    weight_rows = weight + known[:, None] * num_columns
    start(weight_rows, 0, num_columns, IS_DEPENDENT, PREFETCHED)
    is_row = (rows < num_rows)[:, None]
    total = multiply(
        x + rows.to(tl.int64)[:, None] * num_columns, is_row, weight_rows, 0, num_columns, num_columns,
        ROWS, OUTPUTS, COLUMNS, IS_EVEN, PRECISION,
    )  # fmt: skip
    total *= scale_of(squares, rows, num_rows, num_tiles, num_columns, eps, TILES)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + known).to(tl.float32)[None, :]

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
    weight_rows = weight + known[:, None] * num_columns
    start(weight_rows, 0, num_columns, IS_DEPENDENT, PREFETCHED)
    is_row = (rows < num_rows)[:, None]
    total = multiply(
        x + rows.to(tl.int64)[:, None] * num_columns, is_row, weight_rows, 0, num_columns, num_columns,
        ROWS, OUTPUTS, COLUMNS, IS_EVEN, PRECISION,
    )  # fmt: skip
    total *= scale_of(squares, rows, num_rows, num_tiles, num_columns, eps, TILES)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + known).to(tl.float32)[None, :]
    place = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out + place, total, mask=is_row & (outputs < num_outputs)[None, :])


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
    weight_rows = weight + known[:, None] * num_columns
    start(weight_rows, 0, num_columns, IS_DEPENDENT, PREFETCHED)
    is_row = (rows < num_rows)[:, None]
    total = multiply(
        x + rows.to(tl.int64)[:, None] * num_columns, is_row, weight_rows, 0, num_columns, num_columns,
        ROWS, OUTPUTS, COLUMNS, IS_EVEN, PRECISION,
    )  # fmt: skip
    total *= scale_of(squares, rows, num_rows, num_tiles, num_columns, eps, TILES)[:, None]
    gate, up = tl.split(tl.reshape(total, [ROWS, OUTPUTS // 2, 2]))
    features = first + tl.arange(0, OUTPUTS // 2)
    place = rows.to(tl.int64)[:, None] * num_features + features[None, :]
    tl.store(out + place, gate * tl.sigmoid(gate) * up, mask=is_row & (features < num_features)[None, :])


def scale_stream(residual: torch.Tensor, norm: torch.Tensor) -> Scaled:
    """See scale_stream_reference."""
    num_rows, num_features = residual.shape
    assert residual.is_contiguous() and norm.shape == (num_features,)
    scaled = torch.empty_like(residual)
    squares = torch.empty((num_rows, 1), dtype=torch.float32, device=residual.device)
    if num_rows:
        block = triton.next_power_of_2(num_features)
        scale_stream_kernel[(num_rows,)](residual, norm, scaled, squares, num_features, BLOCK=block, num_warps=4)
    return Scaled(scaled, squares)


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
        **_options(x, weight, shape),
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
        **_options(x, weight, shape),
    )
    return out


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
        **_options(x, weight, shape),
    )
    return Scaled(scaled, squares)


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
        **_options(x, weight, shape),
    )
    return out


def _options(x: torch.Tensor, weight: torch.Tensor, shape: TileShape) -> dict[str, Any]:
    """Return the constants that the three products have, and the options of their launch."""
    return {
        "ROWS": shape.rows,
        "OUTPUTS": shape.outputs,
        "COLUMNS": shape.columns,
        "IS_EVEN": x.shape[1] % shape.columns == 0,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "PREFETCHED": _prefetched(*weight.shape, shape.splits),
        "num_warps": shape.warps,
        "num_stages": shape.stages,
        **dependent_launch(x.device),
    }


@cache
def _prefetched(num_outputs: int, num_columns: int, num_splits: int) -> int:
    """Return the number of columns that each program prefetches of each of its outputs: a power of two."""
    affordable = _PREFETCHED_BYTES // (2 * num_outputs * num_splits)
    most: int = triton.next_power_of_2(triton.cdiv(num_columns, num_splits))
    return max(min(1 << affordable.bit_length() >> 1, most), _LINE)
