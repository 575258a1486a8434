"""Engine argument checks: refuses values of engine arguments that the settings of no service validate.

Called by EngineArgs when it is constructed. Raises InvalidRequest with the name of the argument.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.frontend.request.sampling_defaults import read_override
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import split_names

_MOST = {"tokenizer_pool_size": 64, "data_parallel_size": 64, "tensor_parallel_size": 64, "pipeline_parallel_size": 64}
"""Argument -> its maximum value."""
_PROCESSORS = "logits_processors"
_KINDS: dict[str, tuple[type, ...]] = {
    "hf_token": (str, bool),
    "download_dir": (str, Path),
    "allowed_local_media_path": (str, Path),
    "default_mm_loras": (dict,),
    "limit_mm_per_prompt": (dict,),
    "mm_processor_kwargs": (dict,),
    "media_io_kwargs": (dict,),
    "mm_processor_cache_gb": (int, float),
}
"""Argument -> its types, besides None."""


def check_values(values: Mapping[str, Any]) -> None:
    """Check the values of all engine arguments, given by name."""
    for name, value in values.items():
        for text in value if isinstance(value, list | tuple) else [value]:
            _check_text(name, text)
    for name, kinds in _KINDS.items():
        _check_kind(name, values[name], kinds)
    if values["override_generation_config"]:
        _check_sampling_defaults(values["override_generation_config"])
    _check_overrides(values["hf_overrides"])
    if values["speculative_config"] is not None:
        read_speculative_config(values["speculative_config"])
    _check_generation_config(values["generation_config"])
    _check_media(values)
    if (cache := values["mm_processor_cache_gb"]) is not None and not 0 <= cache < math.inf:
        text = f"mm_processor_cache_gb must be a number of GiB, 0 or more, got {cache!r}."
        raise InvalidRequest(text, field="mm_processor_cache_gb")
    for name, most in _MOST.items():
        _check_count(name, values[name], most)
    _check_count("num_prefill_engines", values["num_prefill_engines"], _MOST["data_parallel_size"], least=0)


def _check_media(values: Mapping[str, Any]) -> None:
    """Refuse arguments of media beside language_model_only, with which they would have no effect."""
    if not values["language_model_only"]:
        return
    if values["limit_mm_per_prompt"]:
        text = "language_model_only refuses all images: leave limit_mm_per_prompt out."
        raise InvalidRequest(text, field="limit_mm_per_prompt")
    if values["default_mm_loras"]:
        text = "language_model_only refuses all images, audio and videos: leave default_mm_loras out."
        raise InvalidRequest(text, field="default_mm_loras")
    if values["enable_mm_embeds"]:
        text = (
            "enable_mm_embeds needs the model that reads media, which language_model_only leaves out: set limits of 0 instead."
        )
        raise InvalidRequest(text, field="enable_mm_embeds")


def _check_text(name: str, value: object) -> None:
    """Refuse a text that no message and no file in UTF-8 can hold: Python reads other bytes of a command line as such."""
    if not isinstance(value, str):
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        text = f"{name} {value[:200]!r} is no text in UTF-8: rename it, or use a locale with UTF-8 (PYTHONUTF8=1)."
        raise InvalidRequest(text, field=name) from error


def to_gib(name: str, size_bytes: object) -> float:
    """Return a size in bytes, of an argument of vLLM, in GiB."""
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int | float) or size_bytes <= 0:
        raise InvalidRequest(f"{name} must be a positive number of bytes, got {size_bytes!r}.", field=name)
    return size_bytes / (1 << 30)


def domain_names(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return host names, of which a text may have several, separated by commas; None if there are none."""
    if given is not None and not isinstance(given, list | tuple | str):
        text = f"allowed_media_domains must be a list of host names, got {given!r}."
        raise InvalidRequest(text, field="allowed_media_domains")
    texts = [given] if isinstance(given, str) else given or ()
    return tuple(name for text in texts for name in split_names(str(text))) or None


def processor_names(given: Sequence[str | type] | None) -> tuple[str, ...] | None:
    """Return the names "module:Class" of logits processors, by which workers import them; None if there are none.

    Raises InvalidRequest for a class that another process cannot import.
    """
    if isinstance(given, str) or not isinstance(given, Sequence | None):
        text = f"logits_processors must be a list of classes or names, got {given!r}."
        raise InvalidRequest(text, field=_PROCESSORS)
    return tuple(map(_processor_name, given)) if given else None


def _processor_name(given: object) -> str:
    if isinstance(given, str):
        if not all(given.partition(":")):
            text = f"logits_processors: {given[:200]!r} must be written as module:Class."
            raise InvalidRequest(text, field=_PROCESSORS)
        return given
    if not isinstance(given, type):
        text = f"logits_processors: {given!r} is neither a class nor a name."
        raise InvalidRequest(text, field=_PROCESSORS)
    name = f"{given.__module__}:{given.__qualname__}"
    if given.__module__ == "__main__" or "<" in name:
        where = "a function" if "<" in name else "the main program"
        raise InvalidRequest(
            f"logits_processors: {given.__qualname__} is defined in {where}, where a worker cannot import it: put it at the "
            "top of a module.",
            field=_PROCESSORS,
        )
    return name


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


def _check_count(name: str, value: object, most: int, *, least: int = 1) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
        raise InvalidRequest(f"{name} must be between {least} and {most}, got {value!r}.", field=name)
