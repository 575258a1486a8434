"""Rotary position embedding over interleaved pairs.

Dimensions 2i and 2i+1 of a head form the complex number that is turned by position * frequency[i]; one complex product then
rotates all queries and keys of a layer. Hugging Face keeps the pair as dimensions i and i + D/2, so weights are reordered
once at load (`interleave_heads`); queries and keys change alike, hence no score does.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError


class RotaryTurns:
    """Turns of positions, computed once per step for all layers.

    There is no table of all positions: it would be as large as a model's file says that its context is.

    Args:
        frequencies: [head_dim / 2] float, radians per position.
    """

    def __init__(self, frequencies: torch.Tensor) -> None:
        self._frequencies = frequencies.float()

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the turns [T, 1, D / 2] complex64 of positions [T]."""
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate_(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotate heads [T, H, D] in place by turns [T, 1, D / 2]."""
    tokens, num_heads, head_dim = heads.shape
    torch.view_as_complex(heads.view(tokens, num_heads, head_dim // 2, 2)).mul_(turns)


def interleave_heads(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of a q or k weight (or bias) [H * D, ...] from halves to interleaved pairs."""
    split = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def rotary_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> torch.Tensor:
    """Return the frequencies [head_dim / 2] of a model; ModelError names a scaling that is not supported."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kind = (scaling or {}).get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ModelError(f"Rope scaling {str(kind)[:80]!r} is not supported; supported: {', '.join(sorted(_SCALINGS))}.")
    try:
        return _SCALINGS[kind](frequencies, scaling or {})
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:  # of the file's values, whatever they are
        raise ModelError(f"Rope scaling {kind!r} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


def _default(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:  # noqa: ARG001 - one signature for all
    return frequencies


def _linear(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    return frequencies / float(scaling["factor"])


def _factors(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """GGUF files carry Llama 3's scaling as one divisor per frequency."""
    return frequencies / torch.as_tensor(scaling["factors"], dtype=torch.float32)


def _llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended linearly."""
    factor, low, high = float(scaling["factor"]), float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, stretched)


_SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3, "factors": _factors}
