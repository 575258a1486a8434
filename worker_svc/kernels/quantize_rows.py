"""Quantizes activations to fp8 (e4m3): each row, or group of columns of a row, has a scale that makes its largest value 448.

Dims: T rows, K columns, G columns of a group, Q = ceil(K / G) groups.
"""

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)
_LEAST = tl.constexpr(1e-12)  # lower bound of a group's largest value, so that zeros stay zeros


def quantize_rows_reference(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / scales [T, K] e4m3, and the scales [Q, T] float32.

    Args:
        x: [T, K] floats; rows may have gaps between them, but each row is contiguous.
        group: G; K: one scale per row.
    """
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % group)).reshape(len(x), -(-x.shape[1] // group), group)
    scales = padded.abs().amax(2).clamp_min(_LEAST.value) / _LARGEST.value
    return (padded / scales[:, :, None]).flatten(1)[:, : x.shape[1]].to(torch.float8_e4m3fn), scales.T.contiguous()


@triton.jit
def quantize_rows_kernel(x, out, scales, stride_x, num_columns, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Quantize group `program_id(1)` of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    columns = group * GROUP + at
    inside = (at < GROUP) & (columns < num_columns)
    value = tl.load(x + row * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0), _LEAST) / _LARGEST
    tl.store(out + row * num_columns + columns, value / scale, mask=inside)
    tl.store(scales + group * tl.num_programs(0) + row, scale)


def quantize_rows(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See quantize_rows_reference."""
    num_rows, num_columns = x.shape
    num_groups = triton.cdiv(num_columns, group)
    assert x.stride(1) == 1, "a row's features lie side by side"
    out = torch.empty((num_rows, num_columns), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((num_groups, num_rows), dtype=torch.float32, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(group)
        num_warps = min(max(block // 512, 1), 16)
        quantize_rows_kernel[(num_rows, num_groups)](
            x, out, scales, x.stride(0), num_columns, GROUP=group, BLOCK=block, num_warps=num_warps
        )
    return out, scales
