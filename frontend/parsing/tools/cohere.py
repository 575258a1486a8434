"""Cohere Command: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|>.

The ids only number the calls of one conversation, and the templates number them again: they are replaced by unique ones.
"""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.call_ids import OpenAICallIds
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.json_calls import CallKeys
from tetrad.frontend.parsing.elements.marked_calls import marked_calls
from tetrad.frontend.parsing.elements.script_parser import ScriptParser
from tetrad.frontend.parsing.elements.strict_calls import strict_calls

_OPEN = "<|START_ACTION|>"
_CLOSE = "<|END_ACTION|>"
_KEYS = CallKeys(name="tool_name", others=("tool_call_id",))


class CohereCommand3Format(OpenAICallIds):
    """A ToolFormat (interface.py)."""

    name = "cohere_command3"
    keeps_special_tokens = True
    wraps_content = False

    def recognises(self, chat_template: str) -> bool:
        """Return whether the template writes calls in this format."""
        return _OPEN in chat_template

    def parser(self, tools: Sequence[Tool]) -> Parser:  # noqa: ARG002 - any function name is accepted
        """Return a parser of one output."""
        return ScriptParser(marked_calls(_OPEN, closings=(_CLOSE,), keys=_KEYS))

    def structural_tag(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """Return the structural tag that constrains strict calls to their schemas."""
        return strict_calls(tools, _OPEN, _CLOSE, shape=_numbered_call)


def _numbered_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    number = {"type": "string", "pattern": "^[0-9]{1,3}$"}
    return {"tool_call_id": number, "tool_name": {"const": name}, "parameters": arguments}
