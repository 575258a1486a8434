"""Interface of formats: one format object per syntax, one parser object per output.

A format is chosen once per model, by name or by its chat template; it keeps no state. A parser reads one output from its first
character to its last, in chunks of any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tetrad.frontend.parsing.elements.pieces import Piece


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: the name that the model uses.
        parameters: JSON schema of the arguments, which are an object.
        strict: whether arguments must match the schema even if the model is free not to call.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


class Parser(Protocol):
    """Reads one output."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after `text`; the rest is held back. Malformed text becomes content."""

    def finish(self) -> list[Piece]:
        """Return the held-back pieces at the end of the output, which may be in the middle of an element."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks at the start and the end of a part of an output."""

    start: str
    end: str


class ReasoningFormat(Protocol):
    """The syntax of a model's reasoning. Its parsers return Reasoning and Content only."""

    name: str
    # Whether the marks are special tokens, which detokenization would drop.
    keeps_special_tokens: bool
    # Whether reasoning is shown as part of the content.
    is_content: bool
    # The marks of the reasoning itself.
    thinking: Marks
    # The marks of everything before an answer: structured output starts after it.
    preamble: Marks

    def recognises(self, chat_template: str) -> bool:
        """Return whether a model with this template reasons in this format."""

    def is_over(self, prompt: str) -> bool:
        """Return whether no reasoning can follow a prompt, because the prompt has closed it (thinking switched off)."""

    def is_open(self, prompt: str) -> bool:
        """Return whether the prompt has opened the thinking and the preamble, so that the output may lack their start marks."""

    def parser(self, prompt: str, *, calls_end_it: bool = True) -> Parser:
        """Return a parser of the output after `prompt`, which may have opened the reasoning already.

        Args:
            prompt: the rendered conversation.
            calls_end_it: whether the mark of a call ends reasoning that the model has not closed. False without tools, or if a
                constraint waits for the end mark: a call before it would be unconstrained.
        """


class ToolFormat(Protocol):
    """The syntax of a model's tool calls. Its parsers return Content, ToolCallStart and ToolCallArguments."""

    name: str
    keeps_special_tokens: bool
    # Whether outputs need this parser even if the request has no tools, because plain answers are wrapped, too.
    wraps_content: bool

    def recognises(self, chat_template: str) -> bool:
        """Return whether a model with this template calls tools in this format."""

    @staticmethod
    def new_call_id(name: str, place: int) -> str:
        """Return an id for a call that has none, in a form that the model's template accepts: clients send it back.

        Args:
            name: name of the function.
            place: index of the call among all calls of the conversation.
        """

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. Calls of functions that are not in `tools` are parsed as well."""

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:
        """Return the structural tag that constrains calls of strict tools to their schemas; None if this is impossible."""
