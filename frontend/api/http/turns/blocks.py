"""Blocks: converts an assistant's turn to a sequence of blocks of reasoning, text and calls; one block is open at a time.

The Responses and the Messages API both use this form of a turn. Pure: converts pieces to steps and knows neither API's field
names. White space between blocks does not open a block: models write it around their marks, and clients may not send it back.
The blocks do not depend on the chunks of a turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from tetrad.frontend.parsing.elements.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart

BlockKind = Literal["reasoning", "text", "call"]

_OBJECT = TypeAdapter(dict[str, Any])


@dataclass(slots=True)
class Block:
    """One block, as far as it has been received.

    Attributes:
        index: index in the turn.
        text: the reasoning, the answer, or the arguments of a call as JSON text.
        call_id: id of the call.
        name: name of the called function.
    """

    index: int
    kind: BlockKind
    text: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The start of a block, which has no text yet."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """Further text of a block; `block.text` includes it already."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a block, which is complete."""

    block: Block


Step = Opened | Grown | Closed


class Blocks:
    """Converts the pieces of one turn to steps.

    Attributes:
        blocks: the blocks so far.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None
        self._held: tuple[BlockKind, str] = ("text", "")

    @property
    def ends_in_incomplete_call(self) -> bool:
        """Whether the last block is a call whose arguments are not a JSON object."""
        if not self.blocks or self.blocks[-1].kind != "call":
            return False
        try:
            _OBJECT.validate_json(self.blocks[-1].text)
        except ValidationError:
            return True
        return False

    def feed(self, pieces: Iterable[Piece]) -> list[Step]:
        """Return the steps of further pieces."""
        steps: list[Step] = []
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    steps += self._more("reasoning", text)
                case Content(text):
                    steps += self._more("text", text)
                case ToolCallStart(_, name, call_id):
                    steps += self._begin("call", call_id, name)
                case ToolCallArguments(_, text) if self._open is not None:
                    steps.append(self._grow(self._open, text))
        return steps

    def finish(self) -> list[Step]:
        """Return the steps of the turn's end. If the whole turn is white space, it becomes a block."""
        kind, text = self._held
        steps = self._begin(kind) if text and not self.blocks else []
        if steps and self._open is not None:
            steps.append(self._grow(self._open, text))
        return steps + self._close()

    def _more(self, kind: BlockKind, text: str) -> list[Step]:
        if self._open is not None and self._open.kind == kind:
            return [self._grow(self._open, text)]
        if self._held[0] == kind:
            text = self._held[1] + text
        if not text or text.isspace():
            self._held = (kind, text)
            return []
        steps = self._begin(kind)
        return [*steps, self._grow(self.blocks[-1], text)]

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> list[Step]:
        steps = self._close()
        self._held = ("text", "")
        self._open = Block(len(self.blocks), kind, call_id=call_id, name=name)
        self.blocks.append(self._open)
        return [*steps, Opened(self._open)]

    def _grow(self, block: Block, text: str) -> Step:
        block.text += text
        return Grown(block, text)

    def _close(self) -> list[Step]:
        closed, self._open = self._open, None
        return [] if closed is None else [Closed(closed)]


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call; for an incomplete call, its complete arguments, like streaming clients do."""
    try:
        return _OBJECT.validate_json(text, experimental_allow_partial=True)
    except ValidationError:
        return {}
