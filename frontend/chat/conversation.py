"""Conversation: the messages that the assistant continues, in one form for all APIs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.request.prompt_embeds import PromptEmbeds


@dataclass(frozen=True)
class NamedTool:
    """The tool choice of one function that must be called."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def forces_calls(choice: ToolChoice) -> bool:
    """Return whether a turn consists of calls only, so that a requested format of its text has no effect."""
    return choice == "required" or isinstance(choice, NamedTool)


def num_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of calls in messages."""
    return sum(len(calls) for message in messages if isinstance(calls := message.get("tool_calls"), list))


def thinking_kwargs(given: Mapping[str, Any] | None, *, enabled: bool) -> dict[str, Any]:
    """Return template variables that switch the thinking of hybrid models; none if the client has given one of them."""
    # Templates of hybrid models have either of these two names for it.
    names = ("enable_thinking", "thinking")
    return {} if any(name in (given or {}) for name in names) else dict.fromkeys(names, enabled)


@dataclass(frozen=True)
class Conversation:
    """The messages that the assistant continues, with their tools.

    Attributes:
        messages: {"role", "content", ...} in OpenAI's form.
        tools: functions that the assistant may call.
        tool_choice: "auto": it may call tools; "required": it must; NamedTool: it must call this one; "none": it has no tools.
        parallel_tool_calls: allow more than one call in a turn.
        documents: documents for templates that read them.
        chat_template: replaces the model's template.
        chat_template_kwargs: further variables of the template.
        add_generation_prompt: start a new turn of the assistant.
        continue_final_message: continue the last message instead.
        add_special_tokens: let the tokenizer add BOS and the like to the rendered text.
        mm_processor_kwargs: settings of the model's media processor.
        media_io_kwargs: how media files are read, by modality.
        embeds: prompt embeddings; the messages have one mark for each (chat/embedded.py), in order.
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
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    embeds: Sequence[PromptEmbeds] = ()
