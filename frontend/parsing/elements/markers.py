"""Markers: passes text on up to the next marker, and holds back only a possible start of one."""

import re

from tetrad.frontend.parsing.elements.json_scanner import Sink, skip_space
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class Markers:
    """A few literals. None may be part of another, or the first match would depend on how much text has arrived."""

    def __init__(self, *literals: str) -> None:
        assert not any(one in other for one in literals for other in literals if one is not other)
        self._literals = literals
        self._pattern = re.compile("|".join(re.escape(literal) for literal in literals))
        self._longest_beginning = max(len(literal) for literal in literals) - 1

    def pass_text(self, source: TextSource, sink: Sink) -> Waiting[str]:
        """Pass text to `sink` up to the next marker, and return this marker, unread. Empty: the output has no further one."""
        while (yield from source.more()):
            distance = source.distance_to(self._pattern)
            if distance is not None:
                sink(source.take(distance))
                return (yield from self._next(source))
            held = self._num_held(source.tail(self._longest_beginning))
            sink(source.take(source.num_unread - held))
            if held and not (yield from source.more(than=held)):
                sink(source.take(held))
        return ""

    def _next(self, source: TextSource) -> Waiting[str]:
        for literal in self._literals:
            if (yield from source.starts_with(literal)):
                return literal
        return ""

    def _num_held(self, tail: str) -> int:
        for start in range(len(tail)):
            if any(literal.startswith(tail[start:]) for literal in self._literals):
                return len(tail) - start
        return 0


def skip_separator(source: TextSource, literal: str) -> Waiting[bool]:
    """Read white space, `literal` if present, and white space; return whether the literal was present.

    At the end of the output all this is removed from the record.
    """
    yield from skip_space(source)
    found = yield from source.skip(literal)
    yield from skip_space(source)
    if not (yield from source.more()):
        source.record()
    return found


def skip_closing(source: TextSource, writer: PieceWriter, *literals: str) -> Waiting[bool]:
    """Read each of `literals` that is next, with white space before it. White space without a literal becomes content.

    Returns:
        Whether the last literal was present.
    """
    found = False
    for literal in literals:
        source.record()
        yield from skip_space(source)
        found = yield from source.skip(literal)
        space = source.recorded()
        if not found:
            writer.content(space)
    return found
