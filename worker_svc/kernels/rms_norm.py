"""RMSNorm, alone or after the addition to the residual stream: x / sqrt(mean(x^2) + eps) * weight.

Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019). One program per row; sums are float32 for inputs of any type.
Dims: N rows, D features.
"""

import torch
import triton
import triton.language as tl


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the normed x [N, D], in its type.

    Args:
        x: [N, D]; rows may have gaps between them, but each row is contiguous.
        weight: [D].
        eps: added to the mean square.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add x to the residual in place, and return its norm, see rms_norm_reference; the sum is normed before rounding."""
    total = residual.float() + x.float()
    residual.copy_(total)
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return (total * scale * weight.float()).to(x.dtype)


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, stride_x, stride_residual, stride_out, num_features, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    """Norm row `program_id(0)`; see rms_norm and add_rms_norm."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < num_features
    value = tl.load(x + row * stride_x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * stride_residual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * stride_residual + at, value, mask=inside)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / num_features + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + at, value * scale * gain, mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See rms_norm_reference."""
    return _launch(x, x, weight, eps, add=False)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See add_rms_norm_reference."""
    return _launch(x, residual, weight, eps, add=True)


def _launch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *, add: bool) -> torch.Tensor:
    num_rows, num_features = x.shape
    assert x.stride(1) == residual.stride(1) == weight.stride(0) == 1, "a row's features lie side by side"
    assert residual.shape == x.shape and weight.shape == (num_features,)
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(num_features)
        strides = x.stride(0), residual.stride(0), out.stride(0)
        rms_norm_kernel[(num_rows,)](
            x, residual, weight, out, *strides, num_features, eps, ADD=add, BLOCK=block, num_warps=_num_warps(block)
        )
    return out


def _num_warps(block: int) -> int:
    return min(max(block // 256, 1), 16)
