"""GLM 4.5: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>, strings without quotes.

Hunyuan 3: the same with a mark behind the name, in a section of calls. Solar Open 2: the same with other marks.
"""

import re
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.tagged_values import pass_tagged_value
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.elements.typed_arguments import ArgumentsWriter

_FUNCTION_NAME = re.compile(r"[\w.\-]+")
_KEY_NAME = re.compile(r"[^<\n]+")


class Glm45Format(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        telltale: text that identifies a template with such calls.
        opening: mark before a call.
        closing: mark after it.
        section: marks around all calls, each of which may be missing.
        name_end: mark after the name, which may be missing.
        key: mark before a key.
        value: marks between a key and its value, with white space between them.
        value_end: mark after a value.
    """

    name = "glm45"
    keeps_special_tokens = True
    wraps_content = False
    telltale = "<arg_key>"
    opening = "<tool_call>"
    closing = "</tool_call>"
    section: tuple[str, ...] = ()
    name_end = ""
    key = "<arg_key>"
    value: tuple[str, ...] = ("</arg_key>", "<arg_value>")
    value_end = "</arg_value>"

    def __init__(self) -> None:
        self._markers = Markers(*self.section[:1], self.opening)
        self._closings = (self.closing, *self.section[1:])

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return self.telltale in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while (yield from self._markers.pass_text(source, writer.content)):
                source.record()
                for mark in (*self.section[:1], self.opening):
                    yield from source.skip(mark)
                    yield from skip_space(source)
                name = yield from source.read_run(_FUNCTION_NAME)
                yield from source.skip(self.name_end)
                yield from skip_space(source)
                is_call = name and (yield from source.starts_with_any((self.key, self.closing)))
                text = source.recorded()
                if is_call:
                    writer.start(name)
                    yield from self._read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, *self._closings)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None

    def _read_arguments(self, source: TextSource, writer: PieceWriter, parameters: dict[str, Any]) -> Waiting[None]:
        arguments = ArgumentsWriter(writer, parameters, trims_newlines=False)
        while (yield from source.starts_with(self.key)):
            source.record()
            name = yield from self._read_key(source)
            text = source.recorded()
            if not name:
                writer.content(text)
                break
            value = arguments.begin_value(name)
            if not (yield from pass_tagged_value(source, value, self.value_end, (self.key, self.closing))):
                return
        if (yield from source.more()) and not source.ends_within(self.key, *self.value):
            arguments.end()

    def _read_key(self, source: TextSource) -> Waiting[str]:
        """Read a key and the marks up to its value, and return the key. Empty: there is no key."""
        yield from source.skip(self.key)
        name = (yield from source.read_run(_KEY_NAME)).strip()
        for mark in self.value:
            yield from skip_space(source)
            if not (yield from source.skip(mark)):
                return ""
        return name


class HyV3Format(Glm45Format):
    """The format of Hunyuan 3."""

    name = "hy_v3"
    telltale = "<tool_sep>"
    section = ("<tool_calls>", "</tool_calls>")
    name_end = "<tool_sep>"


class SolarOpen2Format(Glm45Format):
    """The format of Solar Open 2."""

    name = "solar_open2"
    telltale = opening = "<|tool_call:start|>"
    closing = "<|tool_call:end|>"
    key = "<|tool_arg:start|>"
    value = ("<|tool_arg:value|>",)
    value_end = "<|tool_arg:end|>"
