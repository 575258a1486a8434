"""TurnParser: converts the text of one output to pieces of the turn: separates the reasoning, then the tool calls.

It is a chain of parsers; each reads the content that the previous one returns.
"""

import json
from collections.abc import Callable, Iterable, Sequence

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser
from tetrad.frontend.parsing.elements.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart


class TurnParser:
    """The parser of one turn.

    Args:
        reasoning: parser of the reasoning; None: the model does not mark any.
        tools: parser of the tool calls; None: all other text is content.
        forced: parser of the remaining content if the output must consist of calls only; None: it is content.
        shows_reasoning: whether reasoning is shown as part of the content.
        parallel: whether more than one tool call is returned.
        new_id: returns the id of a call that has none, from its name and its index in the turn.
    """

    def __init__(
        self,
        reasoning: Parser | None,
        tools: Parser | None,
        *,
        forced: Parser | None = None,
        shows_reasoning: bool = False,
        parallel: bool = True,
        new_id: Callable[[str, int], str] = OpenAICallIds.new_call_id,
    ) -> None:
        self._stages: Sequence[Parser] = [stage for stage in (reasoning, tools, forced) if stage is not None]
        self._shows_reasoning = shows_reasoning
        self._parallel = parallel
        self._new_id = new_id
        self._last_arguments: list[str] = []
        self.num_tool_calls = 0

    @property
    def has_incomplete_call(self) -> bool:
        """Whether the last call's arguments are not a JSON object."""
        if not self.num_tool_calls:
            return False
        try:
            return not isinstance(json.loads("".join(self._last_arguments)), dict)
        except (ValueError, RecursionError):
            return True

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after `text`."""
        if not self._stages:
            # The fast path of most turns, taken for each token.
            return [Content(text)] if text else []
        pieces: list[Piece] = [Content(text)]
        for stage in self._stages:
            pieces = _passed(stage, pieces)
        return self._shown(pieces)

    def finish(self) -> list[Piece]:
        """Return the pieces that were held back until the end of the output."""
        pieces: list[Piece] = []
        for stage in self._stages:
            pieces = _passed(stage, pieces) + stage.finish()
        return self._shown(pieces)

    def _shown(self, pieces: Iterable[Piece]) -> list[Piece]:
        return [shown for piece in pieces if (shown := self._as_shown(piece)) is not None]

    def _as_shown(self, piece: Piece) -> Piece | None:
        if isinstance(piece, Reasoning | Content):
            shown = Content(piece.text) if self._shows_reasoning else piece
            return shown if piece.text else None
        if piece.index > 0 and not self._parallel:
            return None
        if isinstance(piece, ToolCallArguments):
            self._last_arguments.append(piece.text)
            return piece if piece.text else None
        self.num_tool_calls += 1
        self._last_arguments.clear()
        return ToolCallStart(piece.index, piece.name, piece.id or self._new_id(piece.name, piece.index))


def _passed(stage: Parser, pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with all content replaced by the pieces that a parser returns for it."""
    passed: list[Piece] = []
    for piece in pieces:
        passed += stage.feed(piece.text) if isinstance(piece, Content) else (piece,)
    return passed
