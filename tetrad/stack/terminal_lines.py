"""TerminalLines: log lines of services in a readable form for terminals, each with its service's name in colour in front.

Used by ChildOutput for the lines of a stack's services, which are JSON objects, and by `tetrad logs` for stored lines. Without
a terminal, lines stay unchanged, for programs. Control characters in values from requests never reach the terminal.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

Render = Callable[[str], str]
"""Takes a line with its line break, returns one line or several."""

_NAME_WIDTH = 11
_COLOURS = {"frontend": "36", "tokenizer": "32", "engine-core": "33", "worker": "35"}
_OTHER_COLOUR = "34"
_LEVEL_COLOURS = {"warning": "33", "error": "31", "critical": "31"}
_LEADING = ("timestamp", "level", "event", "service", "exception")
"""Fields that are shown at fixed places, or not at all."""
_REPEATED = ("engine-core", "request.finished")
"""Service and event of a line that is not shown: the frontend also logs the end of a request. `tetrad logs` shows both."""
_PLAIN_VALUE = re.compile(r"[\w./:@+=~-]+")
_NUMBER = re.compile(r"-\d+$")


def line_renderer(name: str, stream: TextIO | None = None) -> Render:
    """Return a renderer of a service's lines: readable if `stream` (None: stderr) is a terminal, else unchanged lines."""
    found = sys.stderr if stream is None else stream
    if found is None or not found.isatty():
        return lambda line: line
    return TerminalLines(name, colours=wants_colours())


def wants_colours() -> bool:
    """Return whether to use colours: False if the variable NO_COLOR is set and not empty."""
    return not os.environ.get("NO_COLOR")


class TerminalLines:
    """Renders the lines of one service.

    Args:
        name: the name of the service, such as `tokenizer-2`.
        colours: whether the name and severe levels are coloured.
        with_repeated: whether an event that another service also logs is shown.
    """

    def __init__(self, name: str, *, colours: bool, with_repeated: bool = False) -> None:
        self._colours, self._with_repeated = colours, with_repeated
        colour = _COLOURS.get(_NUMBER.sub("", name), _OTHER_COLOUR)
        self._head = self._coloured(f"{name:<{_NAME_WIDTH}} |", colour)

    def __call__(self, line: str) -> str:
        """Return one line, or several for a traceback, each with the name in front; an empty string for a repeated event."""
        text = line.rstrip("\n")
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if isinstance(event, dict) and (event.get("service"), event.get("event")) == _REPEATED and not self._with_repeated:
            return ""
        lines = self._lines(event) if isinstance(event, dict) and "event" in event else [text]
        return "".join(f"{self._head} {each}\n" for each in lines)

    def _lines(self, event: dict[str, Any]) -> Iterator[str]:
        level = str(event.get("level", ""))
        shown_level = "" if level == "info" else self._coloured(_printable(level), _LEVEL_COLOURS.get(level, "0"))
        fields = (
            f"{_printable(name)}={_value(value)}" for name, value in event.items() if name not in _LEADING and value is not None
        )
        time = _printable(str(event.get("timestamp", "")))[11:19]
        yield " ".join(filter(None, (time, shown_level, _printable(str(event["event"])), *fields)))
        yield from map(_printable, str(event.get("exception", "")).splitlines())

    def _coloured(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours else text


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) and _PLAIN_VALUE.fullmatch(value) else json.dumps(value)


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
