"""xLAM: [{"name": ..., "arguments": {...}}, ...] as the whole output, behind reasoning, in a code fence or behind a mark."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.call_list import read_call_list
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_calls import read_call
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_FENCE = "```"
_THOUGHT_END = "</think>"
# Mark -> the mark after the calls. The end of reasoning belongs to the content: without a reasoning parser it is shown.
_CLOSINGS = {_FENCE: (_FENCE,), "<tool_call>": ("</tool_call>",), "[TOOL_CALLS]": (), _THOUGHT_END: ()}
_MARKERS = Markers(*_CLOSINGS)
# JSON without a mark may be an answer: only objects with the keys of calls, and with arguments, are calls.
_READ_CALL = partial(read_call, bare=True)


class XlamFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "xlam"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template requests such calls."""
        return "make calls in a single JSON array" in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(_read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: calls need no mark that could start a constraint."""
        return None


def _read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    source.record()
    yield from skip_space(source)
    yield from read_call_list(source, writer, _READ_CALL)
    while mark := (yield from _MARKERS.pass_text(source, writer.content)):
        if mark == _THOUGHT_END:
            writer.content(source.take(len(mark)))
            source.record()
        else:
            source.record()
            yield from source.skip(mark)
            yield from source.skip("json" if mark == _FENCE else "")
        yield from skip_space(source)
        if (yield from read_call_list(source, writer, _READ_CALL)):
            yield from skip_closing(source, writer, *_CLOSINGS[mark])
