"""Gated activations: compute f(gate) * up, where gate and up are the halves of one product.

Shazeer, "GLU Variants Improve Transformer" (2020). Dims: N rows, I features of the result.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton
import triton.language as tl

_SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [N, I] for gate_up [N, 2 * I], gate first, computed in float32; rows may have gaps between."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gelu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up with GELU's tanh form, as in Gemma; see silu_mul_reference."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


@triton.jit
def gated_kernel(gate_up, out, stride_in, stride_out, num_features, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Compute BLOCK features, number `program_id(1)`, of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_features
    gate = tl.load(gate_up + row * stride_in + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride_in + num_features + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # tanh(u) = 2 * sigmoid(2 * u) - 1
        inner = _SQRT_2_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2 * inner)
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out + row * stride_out + at, active * up, mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See silu_mul_reference."""
    return _launch(gate_up, gelu=False)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See gelu_mul_reference."""
    return _launch(gate_up, gelu=True)


def _launch(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    num_rows, num_features = len(gate_up), gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1, "a row's features lie side by side"
    out = torch.empty((num_rows, num_features), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        block = min(triton.next_power_of_2(num_features), 1024)
        grid = (num_rows, triton.cdiv(num_features, block))
        gated_kernel[grid](gate_up, out, gate_up.stride(0), out.stride(0), num_features, GELU=gelu, BLOCK=block, num_warps=4)
    return out
