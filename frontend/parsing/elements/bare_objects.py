"""Bare objects: reads {key:value,...}, Gemma's form of JSON, and passes it on as JSON while it arrives.

Keys have no quotes. Strings are between marks and have no escapes; numbers, words, lists and nested objects are as in JSON.
"""

import json
import re

from tetrad.frontend.parsing.elements.json_scanner import Sink, pass_value, skip_space
from tetrad.frontend.parsing.elements.json_text import json_text
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.elements.typed_arguments import value_json

_CLOSERS = {"{": "}", "[": "]"}
_KEY = re.compile(r"[^:,{}\[\]<\n]+")
_WORD = re.compile(r"[^,{}\[\]<]+")
_WORDS = frozenset({"boolean", "integer", "number", "null"})


class BareObjects:
    """Reads objects whose strings are between marks.

    Args:
        quote: the mark before and after a string.
    """

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._quotes = Markers(quote)

    def pass_object(self, source: TextSource, sink: Sink) -> Waiting[bool]:
        """Pass one object to `sink` as JSON. False: the object is incomplete or malformed; the rest of it stays unread."""
        closers: list[str] = []  # a stack, as models may nest values deeper than Python nests calls
        while True:
            begins = yield from self._pass_value(source, sink, closers)
            if begins is None or not (yield from self._pass_to_next(source, sink, closers, begins=begins)):
                return False
            if not closers:
                return True
            if closers[-1] == "}" and not (yield from self._pass_key(source, sink)):
                return False

    def _pass_value(self, source: TextSource, sink: Sink, closers: list[str]) -> Waiting[bool | None]:
        """Pass a value, of lists and objects the opening bracket. Return whether it was a bracket; None: it is incomplete."""
        first = yield from source.peek()
        if first in _CLOSERS:
            sink(source.take(1))
            closers.append(_CLOSERS[first])
            return True
        if first == '"':
            complete = yield from pass_value(source, sink)
        elif (yield from source.skip(self._quote)):
            sink('"')
            yield from self._quotes.pass_text(source, lambda text: sink(json.dumps(text, ensure_ascii=False)[1:-1]))
            complete = yield from source.skip(self._quote)
            sink('"' if complete else "")
        else:
            text = (yield from source.read_run(_WORD)).strip()
            complete = (yield from source.more()) and bool(text or source.here != "<")
            sink(value_json(text, _WORDS) if complete else text)
        return False if complete else None

    def _pass_to_next(self, source: TextSource, sink: Sink, closers: list[str], *, begins: bool) -> Waiting[bool]:
        """Pass closing brackets and the comma before the next member. False: neither is next.

        Args:
            source: the text.
            sink: receives them.
            closers: the brackets to close.
            begins: whether the text is at the first member, which has no comma before it.
        """
        while closers:
            yield from skip_space(source)
            has_comma = not begins and (yield from source.skip(","))
            yield from skip_space(source)
            if (yield from source.skip(closers[-1])):  # also after a comma behind the last member
                sink(closers.pop())
                begins = False
                continue
            if begins or has_comma:
                sink(", " if has_comma else "")
                return (yield from source.more())
            return False
        return True

    def _pass_key(self, source: TextSource, sink: Sink) -> Waiting[bool]:
        parts: list[str] = []
        if (yield from source.skip(self._quote)):
            yield from self._quotes.pass_text(source, parts.append)
            yield from source.skip(self._quote)
        else:
            parts.append((yield from source.read_run(_KEY)).strip().strip('"'))
        yield from skip_space(source)
        key = "".join(parts)
        if not key or not (yield from source.skip(":")):
            return False
        yield from skip_space(source)
        sink(f"{json_text(key)}: ")
        return True
