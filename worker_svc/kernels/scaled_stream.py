"""Scaled stream: the residual stream on its way into a norm, whose work is divided among the kernels around it.

The RMSNorm of a row is the row times the norm's weight, times one factor: 1 / sqrt(mean(x^2) + eps). The kernel that adds to
the residual stream also writes the stream times the weight, and the sums of squares of its tiles. The next product multiplies
the former, and scales its results by the factor, which follows from the latter. The stream times the weight may leave the range
of float16, so float16 has no such products. Dims: T rows, D features, S tiles of a row.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


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


def normed(scaled: Scaled, eps: float) -> torch.Tensor:
    """Return the RMS norm [T, D] of the stream."""
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
def scale_of(squares, rows, num_rows, num_tiles, num_features, eps, TILES: tl.constexpr):
    """Return the factor [ROWS] of the norm of rows."""
    tiles = tl.arange(0, TILES)
    inside = (rows < num_rows)[:, None] & (tiles < num_tiles)[None, :]
    parts = tl.load(squares + rows[:, None] * num_tiles + tiles[None, :], mask=inside, other=0.0)
    return 1 / tl.sqrt(tl.sum(parts, 1) / num_features + eps)


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
