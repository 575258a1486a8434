"""Qwen 3 Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>, values as plain text.

Seed-OSS: the same with other outer tags, <seed:tool_call>.

Nothing escapes tags in a value, such as a file that a coding model writes. So an end tag ends a value only if another parameter
or the end of the function is next, and not if it closes a tag within the value.
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
from tetrad.frontend.parsing.elements.typed_arguments import ArgumentsWriter, ValueWriter

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_NEXT_PARAMETER = f"\n{_PARAMETER}"
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
        self._value_marks = Markers(_PARAMETER_END, _NEXT_PARAMETER, _FUNCTION, f"\n{_FUNCTION_END}\n{self.closing}")

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
                    yield from self._read_arguments(source, writer, parameters.get(name, {}))
                    yield from skip_closing(source, writer, _FUNCTION_END, self.closing)
                else:
                    writer.content(text)

        return ScriptParser(read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: the arguments are not JSON."""
        return None

    def _read_arguments(self, source: TextSource, writer: PieceWriter, schema: dict[str, Any]) -> Waiting[None]:
        yield from skip_space(source)
        if (yield from source.peek()) == "{":  # Llama 3.1 writes JSON into the tag
            yield from pass_value(source, writer.arguments)
            return
        arguments = ArgumentsWriter(writer, schema, trims_newlines=True)
        given: set[str] = set()
        while (yield from source.starts_with(_PARAMETER)):
            source.record()
            name = yield from _read_name(source, _PARAMETER)
            text = source.recorded()
            if not name:
                writer.content(text)
                break
            given.add(name)
            value = arguments.begin_value(name)
            if not (yield from self._read_value(source, value, given, schema.get("properties"))):
                value.cut()
                return
            value.end()
            yield from skip_space(source)
        if (yield from source.more()) and not source.ends_within(_PARAMETER):
            arguments.end()

    def _read_value(self, source: TextSource, value: ValueWriter, given: set[str], known: object) -> Waiting[bool]:
        """Read a value and its end tag, if it has one. False: the output ends in the value.

        Args:
            source: the text, which starts with the value.
            value: receives it.
            given: the names of the parameters so far: a further tag with one of them is text of the value.
            known: the properties of the schema, one of which may follow without an end tag; any name, if there are none.
        """
        num_parameters = num_functions = 0  # tags that are open within the value
        while mark := (yield from self._value_marks.pass_text(source, value.add)):
            if mark == _NEXT_PARAMETER:
                yield from source.skip("\n")
                tag, name = yield from _read_tag(source)
                is_known = not known or (isinstance(known, dict) and name in known)
                if name and name not in given and is_known and not num_functions:
                    source.put_back(tag)
                    return True
                value.add(f"\n{tag}")
                num_parameters += 1
            elif mark == _PARAMETER_END:
                source.record()
                yield from source.skip(mark)
                yield from skip_space(source)
                text = source.recorded()
                tag, name = yield from _read_tag(source)
                if tag:
                    # A tag without a name is text, unless the output ends in it.
                    is_tag = bool(name) or not (yield from source.more())
                    ends = is_tag and not num_parameters and name not in given
                else:
                    ends = yield from (self._call_ends(source) if num_parameters else self._function_ends(source))
                if ends:
                    source.put_back(tag)
                    return True
                value.add(text + tag)
                num_parameters += bool(name) - bool(num_parameters)
            elif mark == _FUNCTION or num_functions:
                yield from source.skip(mark)
                value.add(mark)
                num_functions += 1 if mark == _FUNCTION else -1
            else:
                return True
        return False

    def _function_ends(self, source: TextSource) -> Waiting[bool]:
        """Return whether the function ends here: its end tag, or another outer tag, or the end of the output is next."""
        if (yield from source.starts_with(_FUNCTION_END)):
            return not (yield from self._parameter_ends_behind(source))
        tags = (_FUNCTION_END, self.closing, self.opening)
        if (yield from source.starts_with_any(tags)):
            return True
        return not (yield from source.more()) or source.ends_within(_PARAMETER, *tags)

    def _parameter_ends_behind(self, source: TextSource) -> Waiting[bool]:
        """Return whether the end tag of a parameter is next after the end of the function, which then is text of the value."""
        source.record()
        yield from source.skip(_FUNCTION_END)
        yield from skip_space(source)
        found = yield from source.starts_with(_PARAMETER_END)
        source.put_back(source.recorded())
        return found

    def _call_ends(self, source: TextSource) -> Waiting[bool]:
        """Return whether the end of the call is next, and after it the end of the output or another call."""
        source.record()
        ends = yield from source.skip(_FUNCTION_END)
        yield from skip_space(source)
        ends = ends and (yield from source.skip(self.closing))
        yield from skip_space(source)
        ends = ends and (not (yield from source.more()) or (yield from source.starts_with(self.opening)))
        source.put_back(source.recorded())
        return ends


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


def _read_tag(source: TextSource) -> Waiting[tuple[str, str]]:
    """Read the tag of a parameter; return its text, empty if there is none, and its name, empty if it is malformed."""
    source.record()
    name = yield from _read_name(source, _PARAMETER)
    return source.recorded(), name
