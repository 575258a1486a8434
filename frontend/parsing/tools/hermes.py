"""Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once per call. Hermes, Qwen 2.5 and 3, Granite 4."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "hermes"
    keeps_special_tokens = True  # the marks of Hermes 3 are special tokens
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template has the mark; formats with the same mark but other contents are tested before."""
        return _OPEN in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(marked_calls(_OPEN, closings=(_CLOSE,)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        return strict_call(tools, f'{_OPEN}\n{{"name": "NAME", "arguments": ', f"}}\n{_CLOSE}", triggers=[_OPEN])
