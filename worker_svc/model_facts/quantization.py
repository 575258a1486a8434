"""Quantization values: reads and checks the values of a checkpoint's `quantization_config`; errors list the supported ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from tetrad.services.errors import ModelError

CHECKPOINT_METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
"""Supported values of `quant_method`; see packed_weights/formats.py."""

MODELOPT_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION")
"""Supported values of ModelOpt's `quant_algo`; see packed_weights/modelopt.py."""


def choose(config: Mapping[str, Any], key: str, supported: Sequence[Any], *, default: Any = None) -> Any:
    """Return config[key] if it is one of the supported values; otherwise raise ModelError with the value and these.

    Args:
        config: the quantization_config, or a part of it.
        key: key of the value.
        supported: the supported values.
        default: the value if the key is absent.
    """
    value = config.get(key, default)
    # Types are compared too, because == treats 1, 1.0 and True as equal; real checkpoints have the right types.
    if not any(value == each and type(value) is type(each) for each in supported):
        known = ", ".join(repr(each) for each in supported)
        raise ModelError(f"quantization_config: {key} is {repr(value)[:80]}, which is not supported; supported: {known}.")
    return value


def group_size_of(config: Mapping[str, Any]) -> int:
    """Return the number of columns in a group; 0: the whole row."""
    size = config.get("group_size", -1)
    if type(size) is not int or (size != -1 and not 32 <= size <= 1 << 16) or (size > 0 and size % 32):
        raise ModelError(
            f"quantization_config: group_size is {repr(size)[:80]}, which is not supported; supported: -1 and multiples of 32."
        )
    return max(size, 0)


def method_of(quantization: object) -> str:
    """Return the name of a `quantization_config`'s method, supported or not; "" for None."""
    if quantization is None:
        return ""
    return str(quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization)[:80]


def check_method(quantization: object) -> None:
    """Raise ModelError for a checkpoint whose quantization is not supported."""
    if quantization is None:
        return
    method = method_of(quantization)
    if method not in CHECKPOINT_METHODS:
        known = ", ".join(CHECKPOINT_METHODS)
        raise ModelError(f"The model is quantized as {method!r}, which is not supported; supported: {known}.")
