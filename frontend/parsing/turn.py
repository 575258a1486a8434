"""TurnParser: converts one output's text to pieces of the turn: splits off the reasoning, then tool calls.

A chain of parsers; each reads the content of the one before it.
"""

import uuid
from collections.abc import Iterable, Sequence

from tetrad.frontend.parsing.elements.interface import Parser
from tetrad.frontend.parsing.elements.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart


class TurnParser:
    """Reads one output.

    Args:
        reasoning: None: the model does not mark reasoning.
        tools: None: everything else is content.
        forced: reads the content that `tools` leaves, where the output is nothing but calls; None: it is content.
        parallel: let more than one tool call through.
    """

    def __init__(
        self, reasoning: Parser | None, tools: Parser | None, *, forced: Parser | None = None, parallel: bool = True
    ) -> None:
        self._stages: Sequence[Parser] = [stage for stage in (reasoning, tools, forced) if stage is not None]
        self._parallel = parallel
        self.num_tool_calls = 0

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces of new text."""
        if not self._stages:
            # Nearly every turn, for each of its tokens.
            return [Content(text)] if text else []
        pieces: list[Piece] = [Content(text)]
        for stage in self._stages:
            pieces = _passed(stage, pieces)
        return self._shown(pieces)

    def finish(self) -> list[Piece]:
        """Return the pieces that were held back until the output's end."""
        pieces: list[Piece] = []
        for stage in self._stages:
            pieces = _passed(stage, pieces) + stage.finish()
        return self._shown(pieces)

    def _shown(self, pieces: Iterable[Piece]) -> list[Piece]:
        return [shown for piece in pieces if (shown := self._as_shown(piece)) is not None]

    def _as_shown(self, piece: Piece) -> Piece | None:
        if isinstance(piece, Reasoning | Content):
            return piece if piece.text else None
        if piece.index > 0 and not self._parallel:
            return None
        if isinstance(piece, ToolCallArguments):
            return piece if piece.text else None
        self.num_tool_calls += 1
        return ToolCallStart(piece.index, piece.name, piece.id or f"call_{uuid.uuid4().hex[:24]}")


def _passed(stage: Parser, pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with all content replaced by what a parser makes of it."""
    passed: list[Piece] = []
    for piece in pieces:
        passed += stage.feed(piece.text) if isinstance(piece, Content) else (piece,)
    return passed
