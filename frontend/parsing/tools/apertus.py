"""Apertus: <|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>, each call an object whose one key is the function's name."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.call_list import read_call_list
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import pass_value, read_string, skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_calls
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_OPEN = "<|tools_prefix|>"
_CLOSE = "<|tools_suffix|>"
_MARKERS = Markers(_OPEN)


class ApertusFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "apertus"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _OPEN in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(_read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        return strict_calls(tools, _OPEN, _CLOSE, shape=lambda name, arguments: {name: arguments})


def _read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    while (yield from _MARKERS.pass_text(source, writer.content)):
        source.record()
        yield from source.skip(_OPEN)
        yield from skip_space(source)
        if (yield from read_call_list(source, writer, _read_call)):
            yield from skip_closing(source, writer, _CLOSE)


def _read_call(source: TextSource, writer: PieceWriter) -> Waiting[bool]:
    """Read {"name": {...}}; return whether a call was announced."""
    if not (yield from source.skip("{")):
        return False
    yield from skip_space(source)
    name = yield from read_string(source)
    yield from skip_space(source)
    if not name or not (yield from source.skip(":")):
        return False
    yield from skip_space(source)
    if (yield from source.peek()) != "{":
        return False
    writer.start(name)
    if (yield from pass_value(source, writer.arguments)):
        yield from skip_space(source)
        yield from source.skip("}")
    return True
