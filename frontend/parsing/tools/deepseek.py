"""DeepSeek V3 and V3.1: a section of calls; V3's have a type and a fenced JSON block, V3.1's only the name and the JSON."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_scanner import skip_space
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting
from tetrad.frontend.parsing.tools.call_sections import NAME, SectionMarks, sectioned_calls

_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"
_MARKS = SectionMarks(
    begins=("<｜tool▁calls▁begin｜>",),
    call_begin="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    ends=("<｜tool▁calls▁end｜>",),
    fence=_FENCE,
)


class DeepSeekV31Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "deepseek_v31"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _MARKS.begins[0] in chat_template and _FENCE not in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output, which reads the forms of V3 and of V3.1."""
        return ScriptParser(sectioned_calls(_MARKS, _read_head))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        begin = f"{_MARKS.call_begin}NAME{_SEPARATOR}"
        return strict_call(tools, begin, _MARKS.call_end, triggers=[_MARKS.call_begin])


class DeepSeekV3Format(DeepSeekV31Format):
    """A ToolFormat (interface.py)."""

    name = "deepseek_v3"

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _MARKS.begins[0] in chat_template and _FENCE in chat_template

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        begin = f"{_MARKS.call_begin}function{_SEPARATOR}NAME\n{_FENCE}json\n"
        return strict_call(tools, begin, f"\n{_FENCE}{_MARKS.call_end}", triggers=[_MARKS.call_begin])


def _read_head(source: TextSource) -> Waiting[tuple[str, str] | None]:
    first = yield from source.read_run(NAME)
    if not first or not (yield from source.skip(_SEPARATOR)):
        return None
    name = yield from source.read_run(NAME)
    yield from skip_space(source)
    if (yield from source.skip(_FENCE)):
        yield from source.skip("json")
        yield from skip_space(source)
    return name or first, ""
