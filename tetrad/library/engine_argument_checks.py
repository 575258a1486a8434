"""Engine argument checks: refuses values of engine arguments that the settings of no service validate.

Called by EngineArgs when it is constructed. Raises InvalidRequest with the name of the argument.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.frontend.request.sampling_defaults import read_override
from tetrad.services.errors import InvalidRequest

_MOST = {"tokenizer_pool_size": 64, "data_parallel_size": 64, "tensor_parallel_size": 64, "pipeline_parallel_size": 64}
"""Argument -> its maximum value."""
_KINDS: dict[str, tuple[type, ...]] = {"hf_token": (str, bool), "download_dir": (str, Path)}
"""Argument -> its types, besides None."""


def check_values(values: Mapping[str, Any]) -> None:
    """Check the values of all engine arguments, given by name."""
    for name, kinds in _KINDS.items():
        _check_kind(name, values[name], kinds)
    if values["override_generation_config"]:
        _check_sampling_defaults(values["override_generation_config"])
    _check_overrides(values["hf_overrides"])
    if values["speculative_config"] is not None:
        read_speculative_config(values["speculative_config"])
    _check_generation_config(values["generation_config"])
    for name, most in _MOST.items():
        _check_count(name, values[name], most)


def to_gib(name: str, size_bytes: object) -> float:
    """Return a size in bytes, of an argument of vLLM, in GiB."""
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int | float) or size_bytes <= 0:
        raise InvalidRequest(f"{name} must be a positive number of bytes, got {size_bytes!r}.", field=name)
    return size_bytes / (1 << 30)


def _check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        text = f"{name} must be {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}."
        raise InvalidRequest(text, field=name)


def _check_sampling_defaults(values: dict[str, Any]) -> None:
    name = "override_generation_config"
    try:
        read_override(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}: {error}", field=name) from error


def _check_overrides(overrides: object) -> None:
    if overrides is not None and not callable(overrides) and not isinstance(overrides, Mapping):
        text = f"hf_overrides must be a dict or a function, got {type(overrides).__name__}."
        raise InvalidRequest(text, field="hf_overrides")


def _check_generation_config(value: object) -> None:
    if value not in ("auto", "vllm"):
        text = f"generation_config={value!r} is not supported; use 'auto' or 'vllm'."
        raise InvalidRequest(text, field="generation_config")


def _check_count(name: str, value: object, most: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
        raise InvalidRequest(f"{name} must be between 1 and {most}, got {value!r}.", field=name)
