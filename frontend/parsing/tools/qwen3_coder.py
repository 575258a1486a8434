"""Qwen 3 Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>, values as plain text.

Seed-OSS: the same with other outer tags, <seed:tool_call>.
"""

import re
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.elements.typed_arguments import ArgumentsWriter

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_NAME = re.compile(r"[^<>\n]+")


class Qwen3CoderFormat(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        opening: the outer tag of a call.
        closing: its end.
    """

    name = "qwen3_coder"
    keeps_special_tokens = True
    wraps_content = False
    opening = "<tool_call>"
    closing = "</tool_call>"

    def __init__(self) -> None:
        # The model sometimes omits the outer tag.
        self._markers = Markers(self.opening, _FUNCTION)
        # The model sometimes omits the end of a value, too: the following tags, on lines of their own, then end it.
        self._value_ends = Markers(_PARAMETER_END, f"\n{_PARAMETER}", f"\n{_FUNCTION_END}\n{self.closing}")

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _FUNCTION in chat_template and _PARAMETER in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while opening := (yield from self._markers.pass_text(source, writer.content)):
                source.record()
                if opening == self.opening:
                    yield from source.skip(opening)
                    yield from skip_space(source)
                name = yield from _read_name(source, _FUNCTION)
                text = source.recorded()
                if name:
                    writer.start(name)
                    yield from _read_arguments(source, writer, parameters.get(name, {}), self._value_ends)
                    yield from skip_closing(source, writer, _FUNCTION_END, self.closing)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None


class Qwen3XmlFormat(Qwen3CoderFormat):
    """The same format with its other name."""

    name = "qwen3_xml"


class SeedOssFormat(Qwen3CoderFormat):
    """The format of Seed-OSS."""

    name = "seed_oss"
    opening = "<seed:tool_call>"
    closing = "</seed:tool_call>"

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes the outer tag."""
        return self.opening in chat_template


def _read_name(source: TextSource, tag: str) -> Waiting[str]:
    """Read a tag and return the name in it; empty: there is no tag."""
    if not (yield from source.skip(tag)):
        return ""
    name = yield from source.read_run(_NAME)
    return name.strip() if (yield from source.skip(">")) else ""


def _read_arguments(source: TextSource, writer: PieceWriter, parameters: dict[str, Any], value_ends: Markers) -> Waiting[None]:
    yield from skip_space(source)
    if (yield from source.peek()) == "{":  # Llama 3.1 writes JSON into the tag
        yield from pass_value(source, writer.arguments)
        return
    arguments = ArgumentsWriter(writer, parameters, trims_newlines=True)
    while (yield from source.starts_with(_PARAMETER)):
        source.record()
        name = yield from _read_name(source, _PARAMETER)
        text = source.recorded()
        if not name:
            writer.content(text)
            break
        value = arguments.begin_value(name)
        if not (yield from value_ends.pass_text(source, value.add)):
            value.cut()
            return
        value.end()
        yield from source.skip(_PARAMETER_END)
        yield from skip_space(source)
    if (yield from source.more()) and not source.ends_within(_PARAMETER):
        arguments.end()
