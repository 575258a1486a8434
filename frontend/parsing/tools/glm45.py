"""GLM 4.5: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>, strings without quotes."""

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

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_KEY = "<arg_key>"
_KEY_END = "</arg_key>"
_VALUE = "<arg_value>"
_VALUE_END = "</arg_value>"
_MARKERS = Markers(_OPEN)
_FUNCTION_NAME = re.compile(r"[\w.\-]+")
_KEY_NAME = re.compile(r"[^<\n]+")


class Glm45Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "glm45"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _KEY in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while (yield from _MARKERS.pass_text(source, writer.content)):
                source.record()
                yield from source.skip(_OPEN)
                yield from skip_space(source)
                name = yield from source.read_run(_FUNCTION_NAME)
                yield from skip_space(source)
                is_call = name and ((yield from source.starts_with(_KEY)) or (yield from source.starts_with(_CLOSE)))
                text = source.recorded()
                if is_call:
                    writer.start(name)
                    yield from _read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, _CLOSE)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None


def _read_arguments(source: TextSource, writer: PieceWriter, parameters: dict[str, Any]) -> Waiting[None]:
    arguments = ArgumentsWriter(writer, parameters, trims_newlines=False)
    while (yield from source.starts_with(_KEY)):
        source.record()
        name = yield from _read_key(source)
        text = source.recorded()
        if not name:
            writer.content(text)
            break
        value = arguments.begin_value(name)
        if not (yield from pass_tagged_value(source, value, _VALUE_END, (_KEY, _CLOSE))):
            return
    if (yield from source.more()) and not source.ends_within(_KEY, _KEY_END, _VALUE):
        arguments.end()


def _read_key(source: TextSource) -> Waiting[str]:
    """Read a key and the opening mark of its value, and return the key. Empty: there is no key."""
    yield from source.skip(_KEY)
    name = (yield from source.read_run(_KEY_NAME)).strip()
    if not (yield from source.skip(_KEY_END)):
        return ""
    yield from skip_space(source)
    return name if (yield from source.skip(_VALUE)) else ""
