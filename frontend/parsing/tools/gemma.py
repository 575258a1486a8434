"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:5}<tool_call|>. FunctionGemma: the same with other marks."""

import re
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.bare_objects import BareObjects
from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_NAME = re.compile(r"[\w.\-]+")


class Gemma4Format(OpenAICallIds):
    """A ToolFormat (interface.py).

    Attributes:
        opening: mark before a call.
        closing: mark after it.
        quote: mark before and after a string.
    """

    name = "gemma4"
    keeps_special_tokens = True
    wraps_content = False
    opening = "<|tool_call>"
    closing = "<tool_call|>"
    quote = '<|"|>'

    def __init__(self) -> None:
        self._markers = Markers(self.opening)
        self._objects = BareObjects(self.quote)

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return self.opening in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(self._read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None

    def _read(self, source: TextSource, writer: PieceWriter) -> Waiting[None]:
        while (yield from self._markers.pass_text(source, writer.content)):
            source.record()
            yield from source.skip(self.opening)
            yield from skip_space(source)
            yield from source.skip("call:")
            name = yield from source.read_run(_NAME)
            text = source.recorded()
            if name and (yield from source.peek()) == "{":
                writer.start(name)
                yield from self._objects.pass_object(source, writer.arguments)
                yield from skip_closing(source, writer, self.closing)
            else:
                writer.content(text)


class FunctionGemmaFormat(Gemma4Format):
    """The format of FunctionGemma."""

    name = "functiongemma"
    opening = "<start_function_call>"
    closing = "<end_function_call>"
    quote = "<escape>"
