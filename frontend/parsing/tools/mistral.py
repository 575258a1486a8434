"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; since 2025 [TOOL_CALLS]name[ARGS]{...}, once per call."""

import re
import secrets
import string
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_calls import read_call_or_calls
from tetrad.frontend.parsing.elements.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.elements.markers import Markers
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call, strict_calls
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_CALLS = "[TOOL_CALLS]"
_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
_MARKERS = Markers(_CALLS)
_NAME = re.compile(r"[\w.\-]+")
_ALPHANUMERIC = string.ascii_letters + string.digits


class MistralFormat:
    """A ToolFormat (interface.py)."""

    name = "mistral"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template marks calls in this way."""
        return _CALLS in chat_template

    @staticmethod
    def new_call_id(name: str, place: int) -> str:  # noqa: ARG004 - of the interface
        """Return an id in the form that Mistral's templates require: nine letters or digits."""
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(_read)

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls, in both forms, to their schemas."""
        array = strict_calls(tools, _CALLS, "")
        single = strict_call(tools, f"{_CALLS}NAME{_ARGUMENTS}", "", triggers=[])
        return {key: array[key] + single[key] for key in array}


def _read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    while (yield from _MARKERS.pass_text(source, writer.content)):
        source.record()
        yield from source.skip(_CALLS)
        yield from skip_space(source)
        if (yield from source.peek()) in ("[", "{"):
            yield from read_call_or_calls(source, writer)
        else:
            yield from _read_named(source, writer)


def _read_named(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    name = yield from source.read_run(_NAME)
    call_id = ""
    if name and (yield from source.skip(_ID)):
        call_id = yield from source.read_run(_NAME)
    if name:
        yield from source.skip(_ARGUMENTS)
        yield from skip_space(source)
    text = source.recorded()
    if name and (yield from source.peek()) == "{":
        writer.start(name, call_id)
        yield from pass_value(source, writer.arguments)
    else:
        writer.content(text)
