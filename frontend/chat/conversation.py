"""Conversation: the messages that the assistant continues, in one form for all APIs. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.request.prompt_embeds import PromptEmbeds


@dataclass(frozen=True)
class NamedTool:
    """The one function that must be called."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def forces_calls(choice: ToolChoice) -> bool:
    """Return whether a turn consists of calls alone: a format that the client wants of its text has no effect then."""
    return choice == "required" or isinstance(choice, NamedTool)


@dataclass(frozen=True)
class Conversation:
    """The messages that the assistant continues, with their tools.

    Attributes:
        messages: {"role", "content", ...} as OpenAI writes them.
        tools: functions it may call.
        tool_choice: whether it may, must, or must call a certain one. "none" hides the tools from the model.
        parallel_tool_calls: let it make more than one call in a turn.
        documents: for templates of models that read them.
        chat_template: instead of the model's.
        chat_template_kwargs: further variables of the template.
        add_generation_prompt: open the assistant's turn.
        continue_final_message: go on in the last message instead.
        add_special_tokens: let the tokenizer add BOS and the like on top of what the template writes.
        embeds: prompt embeddings; messages have a mark for each (chat/embedded.py), in order.
    """

    messages: Sequence[dict[str, Any]]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    documents: Sequence[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    embeds: Sequence[PromptEmbeds] = ()
