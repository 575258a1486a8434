"""Phi-4-mini: functools[{"name": ..., "arguments": {...}}, ...], or <|tool_call|>[...]<|/tool_call|>."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_call, strict_calls

_OPEN = "<|tool_call|>"
_CLOSE = "<|/tool_call|>"
_WORD = "functools["


class Phi4Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "phi4_mini_json"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template lists tools in Phi-4-mini's form."""
        return "<|/tool|>" in chat_template or _CLOSE in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(marked_calls(_OPEN, _WORD, closings=(_CLOSE,)))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        marked = strict_calls(tools, _OPEN, _CLOSE)
        # The word without a bracket is not a trigger: it is also the name of a Python module.
        word = strict_call(tools, f'{_WORD}{{"name": "NAME", "arguments": ', "}]", triggers=[_WORD])
        return {key: marked[key] + word[key] for key in marked}
