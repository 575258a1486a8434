"""Pooler overrides: replaces values of a model's files by the fields of vLLM's PoolerConfig that a user sets."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.models.model_directory import parse_json_object
from tetrad.worker_svc.checkpoint.pooler_config import PoolerConfig, PoolingType
from tetrad.worker_svc.core.pooling import TASKS

_SEQUENCE: Mapping[str, PoolingType] = {"CLS": "CLS", "LAST": "LAST", "MEAN": "MEAN"}
_TOKENS = ("ALL", "STEP")
_COUNTS_FROM_ONE = ("dimensions", "max_embed_len")
_REMOVED = ("normalize", "softmax", "activation")
_NOT_HERE = {"enable_flash_late_interaction": True}
"""Unsupported fields -> their value without effect."""


def override_pooler(config: PoolerConfig, overrides_json: str) -> PoolerConfig:
    """Return the config with a user's fields; raise ModelError, with the field's name, for a wrong or unsupported field.

    Args:
        config: the config of the model's files.
        overrides_json: a JSON object; empty: no overrides.
    """
    fields = parse_json_object(overrides_json, "pooler_config") if overrides_json else {}
    fields = {name: value for name, value in fields.items() if value is not None}
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _REMOVED:
            raise ModelError(f"pooler_config: parameter `{name}` was removed; use `use_activation` instead.")
        if name in _NOT_HERE:
            if value != _NOT_HERE[name]:
                raise ModelError(f"pooler_config: {name} {str(value)[:80]!r} is not supported.")
            continue
        if name not in _READERS:
            raise ModelError(f"pooler_config: there is no field {name[:80]!r}; fields: {', '.join(sorted(_READERS))}.")
        changes |= _READERS[name](name, value)
    if "pooling_type" in fields and ("seq_pooling_type" in fields or "tok_pooling_type" in fields):
        raise ModelError("pooler_config: pooling_type stands for seq_pooling_type or tok_pooling_type; set one of them only.")
    changed = replace(config, **changes)
    if not changed.has_steps and {"step_tag_id", "returned_token_ids"} & fields.keys():
        raise ModelError("pooler_config: step_tag_id and returned_token_ids need tok_pooling_type STEP.")
    return changed


def _pooling_type(name: str, value: Any) -> dict[str, Any]:
    if name != "tok_pooling_type" and value in _SEQUENCE:
        return {"pooling": _SEQUENCE[value]}
    if name != "seq_pooling_type" and value in _TOKENS:
        return {"has_steps": value == "STEP"}
    known = _TOKENS if name == "tok_pooling_type" else (*_SEQUENCE, *(_TOKENS if name == "pooling_type" else ()))
    raise _wrong(name, value, f"one of {', '.join(known)}")


def _task(name: str, value: Any) -> dict[str, Any]:
    if value not in TASKS:
        raise _wrong(name, value, f"one of {', '.join(TASKS)}")
    return {"task": value}


def _flag(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return {name: value}


def _chunked_processing(name: str, value: Any) -> dict[str, Any]:
    return {"chunked_processing": _flag(name, value)[name]}


def _number(name: str, value: Any) -> dict[str, Any]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (name == "logit_sigma" and value == 0):
        raise _wrong(name, value, "a number other than 0" if name == "logit_sigma" else "a number")
    return {name: float(value)}


def _count(name: str, value: Any) -> dict[str, Any]:
    if not _is_index(value) or (name in _COUNTS_FROM_ONE and value == 0):
        raise _wrong(name, value, "a whole number")
    return {name: value}


def _indices(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not all(map(_is_index, value)):
        raise _wrong(name, value, "a list of whole numbers")
    return {name: tuple(value)}


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(name: str, value: Any, expected: str) -> ModelError:
    return ModelError(f"pooler_config: {name} must be {expected}, got {str(value)[:80]!r}.")


_READERS = {
    "task": _task,
    "pooling_type": _pooling_type,
    "seq_pooling_type": _pooling_type,
    "tok_pooling_type": _pooling_type,
    "use_activation": _flag,
    "dimensions": _count,
    "logit_mean": _number,
    "logit_sigma": _number,
    "step_tag_id": _count,
    "returned_token_ids": _indices,
    "enable_chunked_processing": _chunked_processing,
    "max_embed_len": _count,
}
