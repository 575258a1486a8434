"""Kinds of rotary embedding: scales the frequencies by a config's rope_scaling, for longer contexts.

Each function takes frequencies [R / 2], their base `theta`, and the config's values; it returns scaled frequencies and the gain
of rotated queries and keys. Names are the values of `rope_type`; "factors" is the form of Llama 3's scaling in GGUF files.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError

Scaled = tuple[torch.Tensor, float]


def scaled(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:
    """Return scaled frequencies and the gain; raise ModelError if the scaling is not supported or cannot be read."""
    kind = scaling.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ModelError(f"Rope scaling {str(kind)[:80]!r} is not supported; supported: {', '.join(sorted(_SCALINGS))}.")
    try:
        found, gain = _SCALINGS[kind](frequencies, theta, scaling)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:  # caused by wrong values
        raise ModelError(f"Rope scaling {kind!r} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    if found.shape != frequencies.shape or not found.isfinite().all() or not math.isfinite(gain):
        raise ModelError(f"Rope scaling {kind!r} makes no {len(frequencies)} finite frequencies.")
    return found, gain


def _default(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    return frequencies, 1.0


def _linear(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    return frequencies / float(scaling["factor"]), 1.0


def _ntk(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    """Apply GTE's fixed NTK scaling: a base `factor` times as large, and all frequencies divided by factor^(2 / R)."""
    if scaling.get("mixed_b") is not None:
        raise ModelError("Rope scaling 'ntk' with mixed_b is not supported.")
    pairs = torch.arange(1, len(frequencies) + 1, dtype=torch.float32)
    return frequencies / float(scaling["factor"]) ** (pairs / len(frequencies)), 1.0


def _dynamic(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    """Keep the frequencies: dynamic NTK scaling begins behind max_position_embeddings, where no served context ends.

    As in transformers, for every context up to that length. (vLLM serves `factor` times as long contexts, and scales the
    frequencies of all contexts for that length.)
    """
    if scaling.get("alpha") is not None:
        raise ModelError("Rope scaling 'dynamic' with alpha is not supported.")
    float(scaling["factor"])
    return frequencies, 1.0


def _factors(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    """Apply Llama 3's scaling in the form of GGUF files: one divisor per frequency."""
    return frequencies / torch.as_tensor(scaling["factors"], dtype=torch.float32), 1.0


def _llama3(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    """Apply Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between blended linearly."""
    factor, low, high = float(scaling["factor"]), float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, stretched), 1.0


def _yarn(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:
    """Apply YaRN (Peng et al. 2023): like Llama 3's, but blended by the pair's number; queries and keys get a gain."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    rotary_dim = 2 * len(frequencies)

    def pair_that_turns(times: float) -> float:
        """Return which pair turns so many times within the original context; equation 18."""
        return rotary_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_that_turns(float(scaling.get("beta_fast") or 32))
    last = pair_that_turns(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    # As in transformers: a ramp without length becomes a step.
    length = last - first or 0.001
    stretched = ((torch.arange(len(frequencies), dtype=torch.float32) - first) / length).clamp(0, 1)
    return frequencies / factor * stretched + frequencies * (1 - stretched), _yarn_gain(factor, scaling)


def _longrope(frequencies: torch.Tensor, theta: float, scaling: Mapping[str, Any]) -> Scaled:  # noqa: ARG001 - one signature
    """Apply LongRoPE (Ding et al. 2024): a divisor for each frequency; a model has two lists of divisors.

    The list for long contexts is used if the model's context is longer than the original one, for sequences of any length,
    because keys stay in the cache while a sequence grows. (vLLM decides by the longest served context, transformers by
    sequence.)
    """
    longest, original = float(scaling["max_position_embeddings"]), float(scaling["original_max_position_embeddings"])
    factors = torch.as_tensor(scaling["long_factor" if longest > original else "short_factor"], dtype=torch.float32)
    if scaling.get("attention_factor") is not None:
        return frequencies / factors, float(scaling["attention_factor"])
    factor = float(scaling["factor"])
    return frequencies / factors, math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_gain(factor: float, scaling: Mapping[str, Any]) -> float:
    """Return the attention factor: the file's value, DeepSeek's quotient of two gains, or the paper's formula."""

    def gain(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return gain(float(scaling["mscale"])) / gain(float(scaling["mscale_all_dim"]))
    return gain(1.0)


_SCALINGS: dict[str, Callable[[torch.Tensor, float, Mapping[str, Any]], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "factors": _factors,
    "yarn": _yarn,
    "longrope": _longrope,
}
