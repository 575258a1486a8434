"""Kimi K2: a section of calls, each with an id that contains the function's name: functions.name:index."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.tools.call_sections import NAME, SectionMarks, sectioned_calls

_ARGUMENTS = "<|tool_call_argument_begin|>"
_MARKS = SectionMarks(
    begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
)


class KimiK2Format:
    """A ToolFormat (interface.py)."""

    name = "kimi_k2"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls or declares tools in this format."""
        return _MARKS.begin in chat_template or "<|im_system|>tool_declare" in chat_template

    @staticmethod
    def new_call_id(name: str, place: int) -> str:
        """Return an id in the model's form: its template writes the id, and not the name, of a call."""
        return f"functions.{name}:{place}"

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(sectioned_calls(_MARKS, _read_head))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: a call's index precedes its arguments, and a structural tag cannot count."""
        return None


def _read_head(source: TextSource) -> Waiting[tuple[str, str] | None]:
    yield from skip_space(source)
    call_id = yield from source.read_run(NAME)
    yield from skip_space(source)
    if not (yield from source.skip(_ARGUMENTS)):
        return None
    yield from skip_space(source)
    name = call_id.rpartition(":")[0] or call_id
    name = name.removeprefix("functions.")
    return (name, call_id) if name else None
