"""Kimi K3: elements of special tokens, <|open|>call tool="f" index="1"<|sep|>...<|close|>call<|sep|>, in an element `tools`.

Each argument is an element with its key and type, whose text is a plain string or JSON. The reasoning format reads the elements
`think` and `response`.
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

_SEPARATOR = "<|sep|>"
_TOOLS, _TOOLS_END = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
_CALL, _CALL_END = "<|open|>call ", "<|close|>call<|sep|>"
_ARGUMENT, _ARGUMENT_END = "<|open|>argument ", "<|close|>argument<|sep|>"
_MESSAGE_END = "<|close|>message<|sep|>"
_MARKERS = Markers(_TOOLS, _CALL)
_TEXT = re.compile(r"[^<\n]+")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


class KimiK3Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "kimi_k3"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _CALL in chat_template or _TOOLS in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values that the model does not mark."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while (yield from _MARKERS.pass_text(source, writer.content)):
                source.record()
                yield from source.skip(_TOOLS)
                yield from skip_space(source)
                name = (yield from _read_attributes(source, _CALL)).get("tool", "")
                text = source.recorded()
                if name:
                    writer.start(name)
                    yield from _read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, _CALL_END, _TOOLS_END, _MESSAGE_END)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None


def _read_arguments(source: TextSource, writer: PieceWriter, schema: dict[str, Any]) -> Waiting[None]:
    arguments = ArgumentsWriter(writer, schema, trims_newlines=False)
    yield from skip_space(source)
    while (yield from source.starts_with(_ARGUMENT)):
        source.record()
        attributes = yield from _read_attributes(source, _ARGUMENT)
        text = source.recorded()
        if not attributes.get("key"):
            writer.content(text)
            break
        is_string = attributes["type"] == "string" if "type" in attributes else None
        value = arguments.begin_value(attributes["key"], is_string=is_string)
        if not (yield from pass_tagged_value(source, value, _ARGUMENT_END, (_ARGUMENT, _CALL_END))):
            return
    if (yield from source.more()) and not source.ends_within(_ARGUMENT, _CALL_END):
        arguments.end()


def _read_attributes(source: TextSource, opening: str) -> Waiting[dict[str, str]]:
    """Read the opening tag of an element and return its attributes; empty: there is no tag, or none is in it."""
    if not (yield from source.skip(opening)):
        return {}
    text = yield from source.read_run(_TEXT)
    if not (yield from source.skip(_SEPARATOR)):
        return {}
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)}
