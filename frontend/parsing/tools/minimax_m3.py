"""MiniMax M3: elements whose tags have a mark before them, ]<]minimax[>[<invoke name="f">, in an element `tool_call`.

Each argument is an element with its key as name. Its text is a plain value, or it has the members of an object or a list.
"""

import re
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import Sink, skip_space
from tetrad.frontend.parsing.elements.markers import Markers, skip_closing
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.elements.typed_arguments import ArgumentsWriter, kinds_of
from tetrad.frontend.parsing.elements.typed_elements import TypedElements

_MARK = "]<]minimax[>["
_CALLS, _CALLS_END = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_INVOKE, _INVOKE_END = f'{_MARK}<invoke name="', f"{_MARK}</invoke>"
_OPEN, _CLOSE = f"{_MARK}<", f"{_MARK}</"
_MARKERS = Markers(_CALLS, _INVOKE)
_FUNCTION_NAME = re.compile(r'[^"<>\n]+')
_ELEMENT_NAME = re.compile(r"[^<>\n]+")


class MinimaxM3Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "minimax_m3"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes the mark."""
        return _MARK in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. The tools' schemas determine the types of values."""
        parameters = {tool.name: tool.parameters for tool in tools}

        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            while (yield from _MARKERS.pass_text(source, writer.content)):
                source.record()
                yield from source.skip(_CALLS)
                yield from skip_space(source)
                name = yield from _read_name(source)
                text = source.recorded()
                if name:
                    writer.start(name)
                    yield from _read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, _INVOKE_END, _CALLS_END)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None


def _read_name(source: TextSource) -> Waiting[str]:
    """Read the tag of a call and return the function's name; empty: there is no such tag."""
    if not (yield from source.skip(_INVOKE)):
        return ""
    name = yield from source.read_run(_FUNCTION_NAME)
    return name.strip() if (yield from source.skip('">')) else ""


def _read_arguments(source: TextSource, writer: PieceWriter, schema: dict[str, Any]) -> Waiting[None]:
    arguments = ArgumentsWriter(writer, schema, trims_newlines=False)
    elements = TypedElements(_MARK, schema)
    yield from skip_space(source)
    while (yield from source.starts_with(_OPEN)) and not (yield from source.starts_with(_CLOSE)):
        source.record()
        yield from source.skip(_OPEN)
        name = yield from source.read_run(_ELEMENT_NAME)
        complete = name and (yield from source.skip(">"))
        text = source.recorded()
        if not complete:
            writer.content(text)
            break
        if not (yield from _read_argument(source, arguments, elements, name, elements.schema_of(schema, name))):
            return
        yield from skip_space(source)
    if (yield from source.more()) and not source.ends_within(_OPEN, _INVOKE_END):
        arguments.end()


def _read_argument(
    source: TextSource, arguments: ArgumentsWriter, elements: TypedElements, name: str, schema: Any
) -> Waiting[bool]:
    """Read an element and its end tag, and write it as an argument. False: the output ends in it.

    Strings are passed on while they arrive. Of other elements, the end shows the type: incomplete ones are dropped.
    """
    if kinds_of(schema) == {"string"} and schema is not None:
        value = arguments.begin_value(name, is_string=True)
        complete = yield from _pass_text(source, name, value.add)
        (value.end if complete else value.cut)()
        return complete
    parts: list[str] = []
    complete = yield from _pass_text(source, name, parts.append)
    if complete:
        arguments.add_json(name, elements.json("".join(parts), schema))
    return complete


def _pass_text(source: TextSource, name: str, sink: Sink) -> Waiting[bool]:
    """Pass the text of an element to `sink`, and read its end tag. Elements with the same name may be nested in it."""
    opening, closing = f"{_OPEN}{name}>", f"{_CLOSE}{name}>"
    markers = Markers(opening, closing)
    num_open = 0
    while mark := (yield from markers.pass_text(source, sink)):
        source.take(len(mark))
        if mark == closing and not num_open:
            return True
        num_open += 1 if mark == opening else -1
        sink(mark)
    return False
