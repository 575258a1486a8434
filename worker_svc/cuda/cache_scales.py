"""Scales of an fp8 KV cache: read from checkpoints, which store them with the key and value projections."""

import torch

from tetrad.worker_svc.layers.parameters import Parameters

_PLACES = ("{kind}_scale", "attn.{kind}_scale", "{kind}_proj.{kind}_scale")
"""Names of the scales, as written by different tools."""


def cache_scales(parameters: Parameters, prefix: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return the scales of a layer's stored keys and values; 1 if the checkpoint has none, or the cache needs none.

    Args:
        parameters: the model's weights.
        prefix: prefix of the names of the layer's attention.
        dtype: type of the cache.
    """
    return (_scale(parameters, prefix, "k"), _scale(parameters, prefix, "v")) if dtype.itemsize == 1 else (1.0, 1.0)


def _scale(parameters: Parameters, prefix: str, kind: str) -> float:
    names = (f"{prefix}.{place.format(kind=kind)}" for place in _PLACES)
    found = [name for name in names if parameters.has(name)]
    return parameters.scalar(found[0]) if found else 1.0
