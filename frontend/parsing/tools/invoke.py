"""MiniMax M2: <invoke name="f"><parameter name="key">value</parameter></invoke>, one or more, between outer tags.

DeepSeek V3.2 and V4: the same with a prefix in every tag, <｜DSML｜invoke name="f">, and an attribute that marks strings.

Step 3: the same with another prefix, between marks of a section and of each call.

MiniCPM 5: <function name="f"><param name="key">value</param></function>, without outer tags; a value may be a CDATA section.
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
from tetrad.frontend.parsing.elements.typed_arguments import ArgumentsWriter, ValueWriter

_NAME = re.compile(r'[^"<>\n]+')
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
# Attribute of a parameter -> whether the value is a string; None: the tool's schema tells.
_ATTRIBUTES = {' string="true"': True, ' string="false"': False, "": None}


class MinimaxM2Format(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        openings: marks before a call, each of which may be missing; the first is in the models' templates.
        closings: marks after a call, each of which may be missing.
        kind: optional text between the openings and the call.
        prefix: text before the name of every tag of the call.
        call: name of the tag of the call.
        parameter: name of the tag of a parameter.
        trims_newlines: whether a newline at either end of a value does not belong to it.
    """

    name = "minimax_m2"
    keeps_special_tokens = True
    wraps_content = False
    openings: tuple[str, ...] = ("<minimax:tool_call>",)
    closings: tuple[str, ...] = ("</minimax:tool_call>",)
    kind = ""
    prefix = ""
    call = "invoke"
    parameter = "parameter"
    trims_newlines = False

    def __init__(self) -> None:
        call, parameter = f"{self.prefix}{self.call}", f"{self.prefix}{self.parameter}"
        self._invoke, self._invoke_end = f'<{call} name="', f"</{call}>"
        self._parameter, self._parameter_end = f'<{parameter} name="', f"</{parameter}>"
        self._markers = Markers(*self.openings, self._invoke)

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes the first mark."""
        return self.openings[0] in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while (yield from self._markers.pass_text(source, writer.content)):
                source.record()
                for opening in (*self.openings, self.kind):
                    yield from source.skip(opening)
                    yield from skip_space(source)
                name = yield from _read_name(source, self._invoke)
                name = name if name and (yield from source.skip(">")) else ""
                text = source.recorded()
                if name:
                    writer.start(name)
                    yield from self._read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, self._invoke_end, *self.closings)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None

    def _read_arguments(self, source: TextSource, writer: PieceWriter, schema: dict[str, Any]) -> Waiting[None]:
        arguments = ArgumentsWriter(writer, schema, trims_newlines=self.trims_newlines)
        followers = (self._parameter, self._invoke_end)
        yield from skip_space(source)
        while (yield from source.starts_with(self._parameter)):
            source.record()
            name = yield from _read_name(source, self._parameter)
            is_string = (yield from _read_attribute(source)) if name else None
            complete = name and (yield from source.skip(">"))
            text = source.recorded()
            if not complete:
                writer.content(text)
                break
            value = arguments.begin_value(name, is_string=is_string)
            if not (yield from self._pass_value(source, value, followers)):
                return
        if (yield from source.more()) and not source.ends_within(*followers):
            arguments.end()

    def _pass_value(self, source: TextSource, value: ValueWriter, followers: Sequence[str]) -> Waiting[bool]:
        """Pass a value up to its end tag; see pass_tagged_value."""
        return (yield from pass_tagged_value(source, value, self._parameter_end, followers))


class DeepSeekV32Format(MinimaxM2Format):
    """The format of DeepSeek V3.2."""

    name = "deepseek_v32"
    openings = ("<｜DSML｜function_calls>",)
    closings = ("</｜DSML｜function_calls>",)
    prefix = "｜DSML｜"


class DeepSeekV4Format(DeepSeekV32Format):
    """The format of DeepSeek V4."""

    name = "deepseek_v4"
    openings = ("<｜DSML｜tool_calls>",)
    closings = ("</｜DSML｜tool_calls>",)


class Step3Format(MinimaxM2Format):
    """The format of Step 3."""

    name = "step3"
    openings = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>")
    closings = ("<｜tool_call_end｜>", "<｜tool_calls_end｜>")
    kind = "function<｜tool_sep｜>"
    prefix = "steptml:"


class MiniCpm5Format(MinimaxM2Format):
    """The format of MiniCPM 5."""

    name = "minicpm5"
    openings = closings = ()
    call = "function"
    parameter = "param"
    trims_newlines = True

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return "<function name=" in chat_template and "<param name=" in chat_template

    def _pass_value(self, source: TextSource, value: ValueWriter, followers: Sequence[str]) -> Waiting[bool]:
        if not (yield from source.skip(_CDATA)):
            return (yield from super()._pass_value(source, value, followers))
        complete = yield from pass_tagged_value(source, value, _CDATA_END, (self._parameter_end,))
        yield from source.skip(self._parameter_end)
        yield from skip_space(source)
        return complete


def _read_name(source: TextSource, tag: str) -> Waiting[str]:
    """Read the beginning of a tag and the name in it; empty: there is no name."""
    if not (yield from source.skip(tag)):
        return ""
    name = yield from source.read_run(_NAME)
    return name.strip() if (yield from source.skip('"')) else ""


def _read_attribute(source: TextSource) -> Waiting[bool | None]:
    for attribute, is_string in _ATTRIBUTES.items():
        if (yield from source.skip(attribute)):
            return is_string
    return None
