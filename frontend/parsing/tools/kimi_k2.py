"""Kimi K2: a section of calls, each with an id that contains the function's name: functions.name:index."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.tools.call_sections import NAME, SectionMarks, sectioned_calls

_ARGUMENTS = "<|tool_call_argument_begin|>"
_MARKS = SectionMarks(
    begins=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    call_begin="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    ends=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
)


class KimiK2Format:
    """A ToolFormat (interface.py)."""

    name = "kimi_k2"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls or declares tools in this format."""
        return _MARKS.begins[0] in chat_template or "<|im_system|>tool_declare" in chat_template

    @staticmethod
    def new_call_id(name: str, place: int) -> str:
        """Return an id in the model's form: its template writes the id, and not the name, of a call."""
        return f"functions.{name}:{place}"

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Return a parser of one output. An id that is only a number calls the tool, if there is only one."""
        name = tools[0].name if len(tools) == 1 else ""
        return ScriptParser(sectioned_calls(_MARKS, partial(_read_head, name)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any] | None:  # noqa: ARG002 - no call can be constrained
        """Return None: a call's index precedes its arguments, and a structural tag cannot count."""
        return None


def _read_head(only_name: str, source: TextSource) -> Waiting[tuple[str, str] | None]:
    yield from skip_space(source)
    call_id = yield from source.read_run(NAME)
    yield from skip_space(source)
    if not (yield from source.skip(_ARGUMENTS)):
        return None
    yield from skip_space(source)
    name = call_id.rpartition(":")[0] if ":" in call_id else call_id
    name = name.removeprefix("functions").removeprefix(".")
    if not name or name.isdecimal():
        # The model has left the name out. Its template needs it in the id, which is made anew.
        return (only_name, "") if only_name and call_id else None
    return name, call_id
