"""Script parser: makes a Parser of a script, a generator that reads one output from start to end.

Scripts know nothing of chunks. Text after the end of a script is content.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.pieces import Piece
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class Writer(Protocol):
    """Collects what a script finds."""

    def content(self, text: str) -> None:
        """Add to the answer."""

    def end(self) -> None:
        """Say that nothing more comes."""

    def take(self) -> list[Piece]:
        """Return the pieces since the last time."""


AnyWriter = TypeVar("AnyWriter", bound=Writer)

Script = Callable[[TextSource, PieceWriter], Waiting[None]]


class WrittenScript(Generic[AnyWriter]):
    """Reads one output as a script says. A Parser (interface.py).

    Args:
        script: what the output is read with.
        writer: what it writes to.
    """

    def __init__(self, script: Callable[[TextSource, AnyWriter], Waiting[None]], writer: AnyWriter) -> None:
        self._source = TextSource()
        self._writer = writer
        self._reading = self._read(script)

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that `text` makes certain."""
        self._source.add(text)
        next(self._reading, None)
        return self._writer.take()

    def finish(self) -> list[Piece]:
        """Return the pieces that were held back."""
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
        script: what the output is read with.
        new_call_id: gives ids to calls, where a model's template is particular about them.
    """

    def __init__(self, script: Script, *, new_call_id: Callable[[], str] = str) -> None:
        super().__init__(script, PieceWriter(new_call_id))
