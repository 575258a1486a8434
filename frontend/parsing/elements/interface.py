"""Interface of formats: one format object per syntax, one parser object per output.

A format is chosen once per model, by name or by its chat template; it keeps no state. A parser reads one output from its first
character to its last and may be fed in any chunking.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tetrad.frontend.parsing.elements.pieces import Piece


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call.

    Attributes:
        name: what the model calls it.
        parameters: JSON schema of its arguments, an object.
        strict: arguments must satisfy the schema even when the model is free to call or not.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


class Parser(Protocol):
    """Reads one output."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that `text` makes certain; the rest is held back. Never raises: malformed text becomes content."""

    def finish(self) -> list[Piece]:
        """Return the pieces that were held back; the output has ended, perhaps in the middle of an element."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks at the beginning and the end of a part of an output."""

    start: str
    end: str


class ReasoningFormat(Protocol):
    """The syntax of a model's reasoning. Its parsers give Reasoning and Content only."""

    name: str
    # Whether the marks are special tokens, which detokenization would drop.
    keeps_special_tokens: bool
    # The reasoning itself.
    thinking: Marks
    # All that comes before an answer: structured output begins behind it.
    preamble: Marks

    def recognises(self, chat_template: str) -> bool:
        """Whether a model with this template reasons in this format."""

    def is_over(self, prompt: str) -> bool:
        """Whether no reasoning can follow a prompt, since it says so itself (thinking switched off)."""

    def is_open(self, prompt: str) -> bool:
        """Whether the output begins in the middle of both stretches, so that their starts need not come."""

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:
        """Return a parser of what follows `prompt`, which may have opened the reasoning already.

        Args:
            prompt: the rendered conversation.
            calls_end_it: let the mark of a call end a reasoning that the model forgot to end. False where a constraint waits
                for the end itself: what looks like a call has been held to nothing.
        """


class ToolFormat(Protocol):
    """The syntax of a model's tool calls. Its parsers give Content, ToolCallStart and ToolCallArguments."""

    name: str
    keeps_special_tokens: bool
    # Whether outputs need this parser even when the request has no tools, because plain answers are wrapped too.
    wraps_content: bool

    def recognises(self, chat_template: str) -> bool:
        """Whether a model with this template calls tools in this format."""

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. A call of a function that is not among `tools` is parsed like any other."""

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:
        """Return the structural tag that holds calls of strict tools to their schemas; None if this format cannot."""
