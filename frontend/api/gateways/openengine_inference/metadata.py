"""Metadata: decodes OpenEngine's metadata keys of a call. Other keys are ignored."""

from collections.abc import Iterable
from typing import Any

from tetrad.services.errors import InvalidRequest

_PREFIX = "openengine-"
_PRIORITY = "openengine-priority"
_RANK = "openengine-target-dp-rank"
# Key -> argument of AsyncLLM.add_request, and the values that the protocol allows.
_NUMBERS = {_PRIORITY: ("priority", -(2**31), 2**31 - 1), _RANK: ("data_parallel_rank", 0, 2**32 - 1)}
_MAX_DIGITS = 11


def call_options(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, Any]:
    """Return the arguments of AsyncLLM.add_request in the metadata of a call.

    Raises:
        InvalidRequest: an OpenEngine key is given twice, is not supported, or its value is not a number in the allowed range.
    """
    options: dict[str, Any] = {}
    for key, value in metadata:
        if not key.startswith(_PREFIX):
            continue
        if key not in _NUMBERS:
            text = f"The metadata key {key} is not supported: the frontend routes by load and by cached prefixes."
            raise InvalidRequest(text, field=key)
        name, least, most = _NUMBERS[key]
        if name in options:
            raise InvalidRequest(f"The metadata key {key} may be given once.", field=key)
        options[name] = _number_of(key, value, least, most)
    return options


def _number_of(key: str, value: str | bytes, least: int, most: int) -> int:
    text = value if isinstance(value, str) else ""
    digits = text.removeprefix("-") if least < 0 else text
    number = int(text) if digits.isascii() and digits.isdecimal() and len(text) <= _MAX_DIGITS else None
    if number is None or not least <= number <= most:
        raise InvalidRequest(f"{key} must be an integer in [{least}, {most}], got {text[:64]!r}.", field=key)
    return number
