"""Pythonic: [f(a=1), g(b="x")] as the whole output, or between marks. Llama 3.2, Llama 4, Toolace, LFM2.

Olmo 3: the calls on lines of their own between tags, without brackets.
"""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.call_list import CallElements, read_call_list
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.python_calls import read_python_call
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


class PythonicFormat(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        telltale: text that identifies a template with such calls.
        opening: mark before the list. A list at the start of the output needs none.
        closing: mark after the list.
    """

    name = "pythonic"
    keeps_special_tokens = True
    wraps_content = False
    telltale = "[func_name1(params_name1="
    opening = "<|python_start|>"
    closing = "<|python_end|>"

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template requests such calls."""
        return self.telltale in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(self._read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None

    def _read(self, source: TextSource, writer: PieceWriter) -> Waiting[None]:
        source.record()
        yield from skip_space(source)
        yield from read_call_list(source, writer, read_python_call)
        markers = Markers(self.opening)
        while (yield from markers.pass_text(source, writer.content)):
            source.record()
            yield from source.skip(self.opening)
            yield from skip_space(source)
            if (yield from read_call_list(source, writer, read_python_call)):
                yield from self._read_end(source, writer)

    def _read_end(self, source: TextSource, writer: PieceWriter) -> Waiting[None]:
        yield from skip_closing(source, writer, self.closing)


class Llama4PythonicFormat(PythonicFormat):
    """The format of Llama 4, whose templates have the marks."""

    name = "llama4_pythonic"
    telltale = "<|python_start|>"


class Lfm2Format(PythonicFormat):
    """The format of LFM2, which has other marks."""

    name = "lfm2"
    telltale = "<|tool_list_start|>"
    opening = "<|tool_call_start|>"
    closing = "<|tool_call_end|>"

    def _read_end(self, source: TextSource, writer: PieceWriter) -> Waiting[None]:
        """Read the mark behind the calls, and drop repetitions of the calls that follow, up to a further mark."""
        marks = Markers(self.opening, self.closing)
        closed = yield from skip_closing(source, writer, self.closing)
        while closed:
            source.record()
            yield from skip_space(source)
            text = [source.recorded()]
            if (yield from source.peek()) == "[":
                yield from marks.pass_text(source, text.append)
            closed = yield from source.skip(self.closing)
            writer.content("" if closed else "".join(text))


class Olmo3Format(PythonicFormat):
    """The format of Olmo 3."""

    name = "olmo3"
    telltale = "<function_calls>"
    opening = "<function_calls>"
    closing = "</function_calls>"

    def _read(self, source: TextSource, writer: PieceWriter) -> Waiting[None]:
        markers = Markers(self.opening)
        while (yield from markers.pass_text(source, writer.content)):
            source.record()
            yield from source.skip(self.opening)
            yield from skip_space(source)
            elements = CallElements(writer, read_python_call)
            while (yield from elements.read(source)):
                yield from skip_space(source)
            yield from elements.end(source, closed=(yield from source.skip(self.closing)))
