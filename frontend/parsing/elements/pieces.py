"""Pieces: the parts of an assistant's turn in their order. Streams send them, `AssistantTurn` adds them up.

Concatenating the pieces of any chunking of a text gives the same turn: that is the one law of every parser here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins.

    Attributes:
        index: 0 for the first call of the turn.
        name: of the function.
        id: unique among all calls; empty in parsers whose format has none: TurnParser gives one.
    """

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the arguments of a call that has begun: JSON text."""

    index: int
    text: str


Piece = Reasoning | Content | ToolCallStart | ToolCallArguments


@dataclass(slots=True)
class ToolCall:
    """A call as far as it is known."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AssistantTurn:
    """The sum of pieces."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Append pieces."""
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    self.reasoning += text
                case Content(text):
                    self.content += text
                case ToolCallStart(_, name, call_id):
                    self.tool_calls.append(ToolCall(call_id, name))
                case ToolCallArguments(index, text):
                    self.tool_calls[index].arguments += text
