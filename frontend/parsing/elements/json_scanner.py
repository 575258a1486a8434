"""JSON scanner: finds the end of a JSON value and passes its text on.

It checks strings and brackets only: a model's `True` or trailing comma is passed on, because the client has already received
the earlier pieces. Line breaks and other control characters in strings, which JSON does not allow, are passed on as escapes. A
value ends early at an unmatched closing bracket, and at `<` outside of strings: JSON does not have it, and every end marker and
special token starts with it.
"""

import json
import re
from collections.abc import Callable

from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

Sink = Callable[[str], object]

_SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^{}\[\]"<]+')
_PLAIN_IN_STRING = re.compile(r'[^"\\]+')
_CONTROL = re.compile(r"[\x00-\x1f]")
_SCALAR = re.compile(r'[^ \t\r\n{}\[\]",:<;]+')
_CLOSERS = {"{": "}", "[": "]"}


def skip_space(source: TextSource) -> Waiting[None]:
    """Read white space, if any."""
    yield from source.read_run(_SPACE)


def pass_value(source: TextSource, sink: Sink) -> Waiting[bool]:
    """Read one value and pass its text to `sink` as it arrives. False: the value is incomplete or missing."""
    first = yield from source.peek()
    if first in _CLOSERS:
        return (yield from _pass_nested(source, sink))
    if first == '"':
        return (yield from _pass_string(source, sink))
    return (yield from _pass_scalar(source, sink))


def read_value(source: TextSource) -> Waiting[str | None]:
    """Read one value and return its text. None: the value is incomplete or missing."""
    parts: list[str] = []
    complete = yield from pass_value(source, parts.append)
    return "".join(parts) if complete else None


def read_string(source: TextSource) -> Waiting[str | None]:
    """Read one JSON string and return its value. None: it is not a string, or is malformed."""
    if (yield from source.peek()) != '"':
        return None
    text = yield from read_value(source)
    return None if text is None else unquoted(text)


def unquoted(literal: str) -> str | None:
    """Return the value of a JSON string literal. None: it is malformed or has lone surrogates."""
    try:
        value = json.loads(literal, strict=False)
        value.encode()
    except ValueError:
        return None
    return str(value)


def _pass_nested(source: TextSource, sink: Sink) -> Waiting[bool]:
    closers: list[str] = []
    while (yield from source.more()):
        char = source.here
        if char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char == '"':
            if not (yield from _pass_string(source, sink)):
                return False
            continue
        elif char == closers[-1]:
            closers.pop()
        elif char in "}]<":
            return False
        sink(source.take(1))
        if not closers:
            return True
        sink(source.take_run(_PLAIN))
    return False


def _pass_string(source: TextSource, sink: Sink) -> Waiting[bool]:
    sink(source.take(1))
    while (yield from source.more()):
        sink(_CONTROL.sub(_escape, source.take_run(_PLAIN_IN_STRING)))
        char = source.here
        if char:
            sink(source.take(1))
        if char == '"':
            return True
        if char == "\\":
            yield from source.more()
            sink(source.take(1))
    return False


def _escape(control: re.Match[str]) -> str:
    return json.dumps(control[0])[1:-1]


def _pass_scalar(source: TextSource, sink: Sink) -> Waiting[bool]:
    found = False
    while (yield from source.more()) and (text := source.take_run(_SCALAR)):
        found = True
        sink(text)
    return found
