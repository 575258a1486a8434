"""Encoder values: reads single values of an encoder's config.json, and checks them."""

import math
from collections.abc import Mapping
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.model_facts.config import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
MAX_LAYERS = 1000
_MAX_SIZE = 1 << 24


def size(config: Mapping[str, Any], *keys: str, default: int | None = None, least: int = 1, most: int = _MAX_SIZE) -> int:
    """Return the integer of the first present key; raise ModelError if the value is not an integer or out of range."""
    key = next((each for each in keys if config.get(each) is not None), keys[0])
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ModelError(f"config.json: {key} must be an integer from {least} to {most}, got {str(value)[:80]!r}.")
    return value


def number(config: Mapping[str, Any], *keys: str, default: float) -> float:
    """Return the number of the first present key; raise ModelError if it is not a finite number above 0."""
    key = next((each for each in keys if config.get(each) is not None), keys[0])
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"config.json: {key} must be a finite number above 0, got {str(value)[:80]!r}.")
    return float(value)


def activation(config: Mapping[str, Any], key: str, default: str = "gelu") -> Activation:
    """Return the name of the MLP's activation; raise ModelError, with the supported names, if it is another one."""
    value = config.get(key, default)
    if value not in ACTIVATIONS:
        raise ModelError(f"config.json: {key} {str(value)[:80]!r} is not supported; supported: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[str(value)]


def refuse(config: Mapping[str, Any], key: str, *expected: object) -> None:
    """Raise ModelError unless the key is absent, null or has one of these values."""
    if config.get(key, expected[0]) not in (*expected, None):
        raise ModelError(f"config.json: {key} {config[key]!r:.80} is not supported; supported: {expected[0]!r}.")


def heads_of(config: Mapping[str, Any], hidden: int, *keys: str) -> int:
    """Return the number of heads; raise ModelError if it does not divide the hidden size."""
    heads = size(config, *keys)
    if hidden % heads:
        raise ModelError(f"config.json: {heads} attention heads do not divide the hidden size {hidden}.")
    return heads
