"""ChatFormats: the formats of one model's turns. Chosen once, by name or by the model's chat template."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tetrad.frontend.parsing.elements.interface import ReasoningFormat, ToolFormat
from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, choose_format

# The format that tokenizer_svc describes in the prompt to models whose template has no tools.
_DESCRIBED_FORMAT = "hermes"

Encode = Callable[[Sequence[str]], Awaitable[list[list[int]]]]
"""Encodes texts to ids, without special tokens around them."""


@dataclass(frozen=True)
class MarkIds:
    """The token ids of Marks (parsing/interface.py)."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChatFormats:
    """The syntax of a model's turns.

    Attributes:
        tools: format of tool calls; None: the model cannot call tools.
        reasoning: format of reasoning; None: the model does not mark any.
        thinking: the ids of the reasoning's marks.
        preamble: the ids of the marks around everything before an answer.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    thinking: MarkIds = MarkIds()
    preamble: MarkIds = MarkIds()


async def choose_chat_formats(tool_parser: str, reasoning_parser: str, chat_template: str, encode: Encode) -> ChatFormats:
    """Choose the formats of a model.

    Args:
        tool_parser: name of a tool format, "auto" or "none". If the template has no known format, the conversation explains
            to the model how to call tools (see tokenizer_svc/chat/tools_in_words.py), so "auto" always finds a format.
        reasoning_parser: name of a reasoning format, "auto" or "none".
        chat_template: the model's chat template; empty: it has none.
        encode: encodes with the model's tokenizer.

    Raises:
        InvalidRequest: there is no format with this name.
    """
    tools = choose_format(TOOL_FORMATS, tool_parser, chat_template)
    if tools is None and tool_parser == "auto":
        tools = next((each for each in TOOL_FORMATS if each.name == _DESCRIBED_FORMAT), None)
    reasoning = choose_format(REASONING_FORMATS, reasoning_parser, chat_template)
    if reasoning is None:
        return ChatFormats(tools)
    marks = (reasoning.thinking, reasoning.preamble)
    ids = [tuple(each) for each in await encode([text for each in marks for text in (each.start, each.end)])]
    return ChatFormats(tools, reasoning, thinking=MarkIds(*ids[:2]), preamble=MarkIds(*ids[2:]))
