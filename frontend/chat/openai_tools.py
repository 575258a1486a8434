"""OpenAI tools: encodes a Tool as the JSON object that chat templates read."""

from typing import Any

from tetrad.frontend.parsing.elements.interface import Tool

_NO_PARAMETERS = {"type": "object", "properties": {}}


def tool_to_openai(tool: Tool) -> dict[str, Any]:
    """Return the JSON object of a tool for chat templates."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    # Templates access the properties of the parameters, so these must exist.
    return {"type": "function", "function": function | {"parameters": tool.parameters or _NO_PARAMETERS}}
