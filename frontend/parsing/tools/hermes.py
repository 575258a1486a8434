"""Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once per call. Hermes, Qwen 2.5 and 3, Granite 4."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesFormat:
    """A ToolFormat (interface.py)."""

    name = "hermes"
    keeps_special_tokens = True  # Hermes 3 has its marks among the special tokens
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Whether the template marks calls so; formats that use the same mark otherwise come before this one."""
        return _OPEN in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - calls name themselves
        """Return a parser of one output."""
        return ScriptParser(marked_calls(_OPEN, closings=(_CLOSE,)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        return strict_call(tools, f'{_OPEN}\n{{"name": "NAME", "arguments": ', f"}}\n{_CLOSE}", triggers=[_OPEN])
