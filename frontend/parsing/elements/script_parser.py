"""Script parser: makes a Parser from a script, a generator that reads one output from start to end.

Scripts do not know chunks. Text after the end of a script is content.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.pieces import Piece
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class Writer(Protocol):
    """The receiver of a script's results."""

    def content(self, text: str) -> None:
        """Append to the answer."""

    def end(self) -> None:
        """Finish: the output has ended."""

    def take(self) -> list[Piece]:
        """Return the pieces since the last call of this method."""


AnyWriter = TypeVar("AnyWriter", bound=Writer)

Script = Callable[[TextSource, PieceWriter], Waiting[None]]


class WrittenScript(Generic[AnyWriter]):
    """Reads one output with a script. A Parser (interface.py).

    Args:
        script: reads the output.
        writer: receives the script's results.
    """

    def __init__(self, script: Callable[[TextSource, AnyWriter], Waiting[None]], writer: AnyWriter) -> None:
        self._source = TextSource()
        self._writer = writer
        self._reading = self._read(script)

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after `text`."""
        self._source.add(text)
        next(self._reading, None)
        return self._writer.take()

    def finish(self) -> list[Piece]:
        """Return the held-back pieces."""
        self._source.end()
        next(self._reading, None)
        self._writer.end()
        return self._writer.take()

    def _read(self, script: Callable[[TextSource, AnyWriter], Waiting[None]]) -> Waiting[None]:
        yield from script(self._source, self._writer)
        while (yield from self._source.more()):
            self._writer.content(self._source.take(self._source.num_unread))


class ScriptParser(WrittenScript[PieceWriter]):
    """Reads tool calls and content.

    Args:
        script: reads the output.
    """

    def __init__(self, script: Script) -> None:
        super().__init__(script, PieceWriter())
