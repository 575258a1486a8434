"""Python calls: reads name(key=value, ...) with literals as values, and converts them to JSON.

A call is announced when it is complete: its values must be parsed before they can be converted. Line breaks and other control
characters in strings, which Python does not allow in most, are read as escapes.
"""

import re

from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.python_literals import keywords_json
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_NAME = re.compile(r"[\w.\-]+")  # functions of OpenAI's API may have a hyphen
_PLAIN = re.compile(r"[^()\[\]{}'\"]+")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_CONTROLS = {chr(code): f"\\x{code:02x}" for code in range(32)}


def read_python_call(source: TextSource, writer: PieceWriter) -> Waiting[bool | None]:
    """Read one call. None: its arguments are not literals with names; False: it is not a call. The record then has the text."""
    name = yield from source.read_run(_NAME)
    if not name or (yield from source.peek()) != "(":
        return False
    arguments = yield from _read_parentheses(source)
    if arguments is None:
        return False
    text = keywords_json(arguments)
    if text is None:
        return None
    writer.start(name)
    writer.arguments(text)
    return True


def _read_parentheses(source: TextSource) -> Waiting[str | None]:
    """Read up to the closing parenthesis and return the text. None: the parenthesis is not closed."""
    parts: list[str] = []
    closers: list[str] = []
    while (yield from source.more()):
        char = source.here
        parts.append(source.take(1))
        if char in "\"'":
            yield from _read_string(source, char, parts)
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char in ")]}" and closers.pop() != char:
            return None
        if not closers:
            return "".join(parts)
        parts.append(source.take_run(_PLAIN))
    return None


def _read_string(source: TextSource, quote: str, parts: list[str]) -> Waiting[None]:
    while (yield from source.more()):
        char = source.take(1)
        parts.append(_CONTROLS.get(char, char))
        if char == quote:
            return
        if char == "\\":
            yield from source.more()
            parts.append(source.take(1))
