"""Sampling values: checks the type of each kind of parameter; SamplingParams checks the ranges.

Pure functions that return the value in normal form, or raise InvalidRequest with parameter, value and limit. Python callers
are not type-checked, so every type is checked here before the request is scheduled.
"""

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from tetrad.services.errors import InvalidRequest

_MAX_U32 = 2**32 - 1
_MAX_NESTING = 32
_MAX_BIAS = 100.0

Kind = TypeVar("Kind", bound=IntEnum)

EXTRA_ARGS = "extra_args"
"""Name of the values for custom logits processors in SamplingParams and in errors of the services."""


def wrong(name: str, text: str) -> InvalidRequest:
    """Return the error of a parameter."""
    return InvalidRequest(text, field=name)


def check_text(name: str, text: str, *, field: str | None = None) -> None:
    """Refuse a text with a lone surrogate, which no message can have.

    Args:
        name: the name of the text in the error.
        text: the text.
        field: the parameter that has the text; None: `name`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        raise wrong(field or name, f"{name} contains {found}: it is not valid text.") from None


def check_integer(name: str, value: object) -> None:
    """Refuse a value that is not an integer; True and False are not integers here."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, f"{name} must be an integer, got {value!r}.")


def check_number(name: str, value: object) -> float:
    """Return `value` as a float if it is a number, also NaN or infinite; else refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise wrong(name, f"{name} must be a number within the range of floats.") from None


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is not True or False."""
    if not isinstance(value, bool):
        raise wrong(name, f"{name} must be a boolean, got {value!r}.")


def member_of(name: str, kind: type[Kind], value: object) -> Kind:
    """Return the member of an enum with this value; refuse any other value."""
    try:
        return kind(value)  # type: ignore[arg-type] # a value that is no member raises ValueError
    except ValueError:
        choices = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise wrong(name, f"{name} must be one of {choices}, got {value!r}.") from None


def strings(name: str, value: object) -> list[str]:
    """Return a list of non-empty valid texts; a single string becomes a list of one, None an empty list."""
    found: list[Any] = [value] if isinstance(value, str) else _listed(name, value or (), "strings")
    for string in found:
        if not isinstance(string, str):
            raise wrong(name, f"{name} must contain only strings, got {string!r}.")
        if not string:
            raise wrong(name, f"{name} cannot contain an empty string.")
        check_text(name, string)
    return found


def token_ids(name: str, value: object) -> list[int]:
    """Return a list of ids that fit 32 bits; whether the model has them is checked elsewhere."""
    found = _listed(name, value, "integers")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int):
            raise wrong(name, f"{name} must contain only integers, got {each!r}.")
        if not 0 <= each <= _MAX_U32:
            raise wrong(name, f"token_id(s) [{each}] in {name} contain out-of-vocab token ids.")
    return found


def biases(name: str, value: object) -> dict[int, float]:
    """Return token id -> bias, clipped to [-100, 100]; ids may be strings, as keys in JSON are."""
    if not isinstance(value, Mapping):
        raise wrong(name, f"{name} must map token ids to numbers, got {value!r}.")
    checked = {}
    for key, bias in value.items():
        token_id = _token_id(name, key)
        if math.isnan(check_number(name, bias)):
            raise wrong(name, f"{name} of token {token_id} must be a number, got {bias}.")
        checked[token_id] = min(_MAX_BIAS, max(-_MAX_BIAS, bias))
    return checked


class VllmXargs(dict[str, Any]):
    """Values of SamplingParams' extra_args from a request whose field for them is vllm_xargs, which errors then name."""


def name_of_extra_args(value: object) -> str:
    """Return the name of the field that the client has set."""
    return "vllm_xargs" if isinstance(value, VllmXargs) else EXTRA_ARGS


def check_extra_args(value: object) -> None:
    """Refuse values that JSON cannot represent, and integers that no float of 64 bits equals."""
    name = name_of_extra_args(value)
    if not isinstance(value, dict):
        raise wrong(name, f"{name} must be a dict, got {value!r}.")
    level: list[Any] = [value]
    for _ in range(_MAX_NESTING):
        level = [child for node in level for child in _children(name, node)]
        if not level:
            return
    raise wrong(name, f"{name} is nested deeper than {_MAX_NESTING} levels.")


def _children(name: str, node: object) -> list[Any]:
    if isinstance(node, dict):
        if any(not isinstance(key, str) for key in node):
            raise wrong(name, f"{name} must have strings as keys.")
        return list(node.values())
    if isinstance(node, list):
        return node
    if isinstance(node, int) and not -(2**63) <= node < 2**63:
        raise wrong(name, f"{name} must contain only integers that fit 64 bits, got {node}.")
    if isinstance(node, int) and int(float(node)) != node:  # messages have floats of 64 bits
        raise wrong(name, f"{name} must contain only integers that a float of 64 bits can hold, got {node}.")
    if isinstance(node, float) and not math.isfinite(node):
        raise wrong(name, f"{name} must contain only finite numbers, got {node}.")
    if node is not None and not isinstance(node, str | int | float):
        raise wrong(name, f"{name} must contain only what JSON can carry, got {node!r}.")
    return []


def _listed(name: str, value: object, what: str) -> list[Any]:
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        found: list[Any] = list(value)  # type: ignore[call-overload] # a value that is not iterable raises TypeError
    except TypeError:
        raise wrong(name, f"{name} must contain only {what}, got {value!r}.") from None
    return found


def _token_id(name: str, key: Any) -> int:
    is_id = isinstance(key, int) or (
        isinstance(key, str) and key.isascii() and key.removeprefix("-").isdigit() and len(key) <= 20
    )
    if not is_id or isinstance(key, bool):
        raise wrong(name, f"{name} must map token ids to numbers, got the key {key!r}.")
    token_id = int(key)
    if not 0 <= token_id <= _MAX_U32:
        raise wrong(name, f"token_id(s) [{token_id}] in {name} contain out-of-vocab token ids.")
    return token_id
