"""Pieces: the parts of an assistant's turn, in order. Streams send them, `AssistantTurn` concatenates them.

Concatenating the pieces of a text gives the same turn for every division of the text into chunks: every parser obeys this law.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Further text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Further text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The start of a tool call.

    Attributes:
        index: index of the call in the turn, from 0.
        name: name of the function.
        id: unique among all calls; empty from parsers of formats without ids: TurnParser then makes one.
    """

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """Further JSON text of the arguments of a started call."""

    index: int
    text: str


Piece = Reasoning | Content | ToolCallStart | ToolCallArguments


@dataclass(slots=True)
class ToolCall:
    """A tool call, as far as it has been received."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AssistantTurn:
    """The concatenation of a turn's pieces."""

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
