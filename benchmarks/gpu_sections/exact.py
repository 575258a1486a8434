"""Exact: the kernels' formulas in float64, written simply, without any code of the kernels that are compared with them."""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMS norm of x [N, D]."""
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def gated(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    """Return f(gate) * up of gate_up [N, 2 * I]."""
    gate, up = gate_up.double().chunk(2, -1)
    return (F.gelu(gate, approximate="tanh") if gelu else gate * torch.sigmoid(gate)) * up


def turned(heads: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Return heads [T, H, D] with the pairs (2i, 2i+1) of their first R dimensions rotated by cos_sin [T, R]."""
    cos, sin = cos_sin.double()[:, None].chunk(2, -1)
    pairs = heads.double()[..., : cos_sin.shape[1]].reshape(*heads.shape[:2], -1, 2)
    rotated = torch.view_as_complex(pairs) * torch.complex(cos, sin)
    return torch.cat([torch.view_as_real(rotated).flatten(-2), heads.double()[..., cos_sin.shape[1] :]], -1)


def attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float, window: int = 0, softcap: float = 0.0
) -> torch.Tensor:
    """Return causal attention [Q, H, D] of one request's last Q tokens to its L keys and values [L, K, D]."""
    length, group = len(keys), query.shape[1] // keys.shape[1]
    wide_keys, wide_values = (part.double().repeat_interleave(group, 1).transpose(0, 1) for part in (keys, values))
    scores = query.double().transpose(0, 1) @ wide_keys.transpose(1, 2) * scale  # [H, Q, L]
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(length, device=query.device)
    distance = places[length - len(query) :, None] - places
    seen = (distance >= 0) & (distance < (window or length))
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ wide_values).transpose(0, 1)
