"""ChatFormats: the formats in which one model writes its turns. Chosen once, by the model's chat template."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tetrad.frontend.parsing.elements.interface import ReasoningFormat, ToolFormat
from tetrad.frontend.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, choose_format

# The format that tokenizer_svc describes to models whose template knows no tools.
_DESCRIBED_FORMAT = "hermes"

Encode = Callable[[Sequence[str]], Awaitable[list[list[int]]]]
"""Texts -> ids, without special tokens added."""


@dataclass(frozen=True)
class MarkIds:
    """The ids of Marks (parsing/interface.py)."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChatFormats:
    """The syntax of a model's turns.

    Attributes:
        tools: how it calls functions; None: it cannot.
        reasoning: how it marks its reasoning; None: it does not.
        thinking: the ids of the reasoning's marks.
        preamble: the ids of the marks of all that comes before an answer.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    thinking: MarkIds = MarkIds()
    preamble: MarkIds = MarkIds()


async def choose_chat_formats(tool_parser: str, reasoning_parser: str, chat_template: str, encode: Encode) -> ChatFormats:
    """Return the formats of a model.

    Args:
        tool_parser: name of a tool format, "auto" or "none". A model whose template asks for no known format is told how to
            call tools by the conversation (see tokenizer_svc/chat/tools_in_words.py), and so has one under "auto", too.
        reasoning_parser: name of a reasoning format, "auto" or "none".
        chat_template: the model's; empty: it has none.
        encode: the model's tokenizer.

    Raises:
        InvalidRequest: no format has such a name.
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
