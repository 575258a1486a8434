"""Granite 3: <|tool_call|>[{"name": ..., "arguments": {...}}, ...], or the same after <tool_call>."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_calls

_OPEN = "<|tool_call|>"
_PLAIN_OPEN = "<tool_call>"
_PLAIN_CLOSE = "</tool_call>"


class GraniteFormat(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "granite"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template marks calls in this way."""
        return _OPEN in chat_template and "<|start_of_role|>" in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(marked_calls(_OPEN, _PLAIN_OPEN, closings=(_PLAIN_CLOSE,)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        marked, plain = strict_calls(tools, _OPEN, ""), strict_calls(tools, _PLAIN_OPEN, _PLAIN_CLOSE)
        return {key: marked[key] + plain[key] for key in marked}
