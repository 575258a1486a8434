"""GLM 4.5: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>, strings without quotes.

Hunyuan 3: the same with a mark behind the name, in a section of calls; its released models have a suffix in every mark.
Solar Open 2: the same with other marks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CallMarks:
    """The marks of calls with keys and values.

    Attributes:
        openings: marks before a call, each of which but the last may be missing.
        closings: marks after a call, each of which may be missing; the first is the end of the call.
        name_end: mark after the name, which may be missing.
        key: mark before a key.
        value: marks between a key and its value, with white space between them.
        value_end: mark after a value.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]
    key: str
    value: tuple[str, ...]
    value_end: str
    name_end: str = ""


class Glm45Format(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        telltales: a template with one of these texts has such calls.
        marks: the marks of the calls; a model writes one of these sets.
    """

    name = "glm45"
    keeps_special_tokens = True
    wraps_content = False
    telltales: tuple[str, ...] = ("<arg_key>",)
    marks: tuple[CallMarks, ...] = (
        CallMarks(("<tool_call>",), ("</tool_call>",), "<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>"),
    )

    def __init__(self) -> None:
        self._marks = {opening: marks for marks in self.marks for opening in marks.openings}
        self._markers = Markers(*self._marks)

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return any(telltale in chat_template for telltale in self.telltales)

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while opening := (yield from self._markers.pass_text(source, writer.content)):
                marks = self._marks[opening]
                source.record()
                for mark in marks.openings:
                    yield from source.skip(mark)
                    yield from skip_space(source)
                name = yield from source.read_run(_FUNCTION_NAME)
                yield from source.skip(marks.name_end)
                yield from skip_space(source)
                is_call = name and (yield from source.starts_with_any((marks.key, marks.closings[0])))
                text = source.recorded()
                if is_call:
                    writer.start(name)
                    yield from _read_arguments(source, writer, marks, parameters.get(name, {}))
                    yield from skip_closing(source, writer, *marks.closings)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None


class HyV3Format(Glm45Format):
    """The format of Hunyuan 3."""

    name = "hy_v3"
    telltales = ("<tool_sep>", "<tool_sep:opensource>")
    marks = tuple(
        CallMarks(
            (f"<tool_calls{suffix}>", f"<tool_call{suffix}>"),
            (f"</tool_call{suffix}>", f"</tool_calls{suffix}>"),
            f"<arg_key{suffix}>",
            (f"</arg_key{suffix}>", f"<arg_value{suffix}>"),
            f"</arg_value{suffix}>",
            f"<tool_sep{suffix}>",
        )
        for suffix in ("", ":opensource")
    )


class SolarOpen2Format(Glm45Format):
    """The format of Solar Open 2."""

    name = "solar_open2"
    telltales = ("<|tool_call:start|>",)
    marks = (
        CallMarks(
            ("<|tool_call:start|>",), ("<|tool_call:end|>",), "<|tool_arg:start|>", ("<|tool_arg:value|>",), "<|tool_arg:end|>"
        ),
    )


def _read_arguments(source: TextSource, writer: PieceWriter, marks: CallMarks, parameters: dict[str, Any]) -> Waiting[None]:
    arguments = ArgumentsWriter(writer, parameters, trims_newlines=False)
    while (yield from source.starts_with(marks.key)):
        source.record()
        name = yield from _read_key(source, marks)
        text = source.recorded()
        if not name:
            writer.content(text)
            break
        value = arguments.begin_value(name)
        if not (yield from pass_tagged_value(source, value, marks.value_end, (marks.key, marks.closings[0]))):
            return
    if (yield from source.more()) and not source.ends_within(marks.key, *marks.value):
        arguments.end()


def _read_key(source: TextSource, marks: CallMarks) -> Waiting[str]:
    """Read a key and the marks up to its value, and return the key. Empty: there is no key."""
    yield from source.skip(marks.key)
    name = (yield from source.read_run(_KEY_NAME)).strip()
    for mark in marks.value:
        yield from skip_space(source)
        if not (yield from source.skip(mark)):
            return ""
    return name
