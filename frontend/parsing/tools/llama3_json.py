"""Llama 3 JSON: {"name": ..., "parameters": {...}} at the start or after <|python_tag|>; semicolons separate calls."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_calls import read_call
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_separator
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_TAG = "<|python_tag|>"
_MARKERS = Markers(_TAG)
# Trigger -> start of a strict call without a tag. With the short trigger "{", every brace in an answer would start a call.
_STRICT_BEGINNINGS = {
    '{"name"': '{"name": "NAME", "parameters": ',
    '{ "name"': '{ "name": "NAME", "parameters": ',
    '{\n"name"': '{\n"name": "NAME", "parameters": ',
    '{\n  "name"': '{\n  "name": "NAME", "parameters": ',
    '{"type"': '{"type": "function", "name": "NAME", "parameters": ',
}


class Llama3JsonFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "llama3_json"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template requests such calls."""
        return _TAG in chat_template or '{"name": function name, "parameters"' in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. With strict tools, only text that starts with a trigger is a call."""
        beginnings = tuple(_STRICT_BEGINNINGS) if any(tool.strict for tool in tools) else ("{",)

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            source.record()
            yield from skip_space(source)
            yield from _read_calls(source, writer, beginnings)
            while (yield from _MARKERS.pass_text(source, writer.content)):
                source.record()
                yield from source.skip(_TAG)
                yield from skip_space(source)
                yield from _read_calls(source, writer, beginnings)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        bare = [strict_call(tools, begin, "}", triggers=[trigger]) for trigger, begin in _STRICT_BEGINNINGS.items()]
        tagged = strict_call(tools, _TAG + _STRICT_BEGINNINGS['{"name"'], "}", triggers=[_TAG])
        return {key: [each for tag in (*bare, tagged) for each in tag[key]] for key in tagged}


def _read_calls(source: TextSource, writer: PieceWriter, beginnings: Sequence[str]) -> Waiting[None]:
    """Read consecutive calls. Recorded text after the last one is content."""
    while (yield from source.starts_with_any(beginnings)) and (yield from read_call(source, writer, bare=True)):
        source.record()
        yield from skip_separator(source, ";")
    writer.content(source.recorded())
