"""Tools: converts tools of the Responses API to a conversation's functions and tool choice. Pure."""

import re
from collections.abc import Sequence

from tetrad.frontend.api.http.responses.bodies import InputBody, ToolBody, ToolChoiceBody
from tetrad.frontend.chat.conversation import NamedTool, ToolChoice
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FUNCTION = "function"


def chosen_tools(body: InputBody) -> tuple[list[Tool], ToolChoice]:
    """Return the functions that may be called and the tool choice; InvalidRequest for an invalid choice."""
    tools = _tools(body.tools or ())
    choice = body.tool_choice
    if not isinstance(choice, ToolChoiceBody):
        if choice == "required" and not tools:
            raise _wrong("When using `tool_choice`, `tools` must be set.")
        return tools, choice or "auto"
    if choice.type == _FUNCTION:
        [named] = _among(tools, [choice.name])
        return tools, NamedTool(named.name)
    if choice.type != "allowed_tools":
        raise _wrong(f"tool_choice of type {choice.type!r} is not supported, only 'function' and 'allowed_tools'.")
    other = next((tool.type for tool in choice.tools or () if tool.type != _FUNCTION), None)
    if other is not None:
        raise _wrong(f"tool_choice.tools: tools of type {other!r} are not supported, only 'function'.")
    allowed = _among(tools, list(dict.fromkeys(tool.name for tool in choice.tools or ())))
    if not allowed:
        raise _wrong("tool_choice of type 'allowed_tools' needs tools.")
    return allowed, choice.mode or "auto"


def _tools(bodies: Sequence[ToolBody]) -> list[Tool]:
    tools: dict[str, Tool] = {}
    for place, body in enumerate(bodies):
        path = f"tools.{place}"
        if body.type != _FUNCTION:
            text = f"{path}: tools of type {body.type!r} are not supported by this server, only 'function'."
            raise InvalidRequest(text, field=f"{path}.type")
        name = body.name or ""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{path}.name must match {_NAME.pattern}, got {name[:80]!r}.", field=f"{path}.name")
        if name in tools:
            raise InvalidRequest(f"{path}.name: {name!r} is used more than once.", field=f"{path}.name")
        tools[name] = Tool(name, body.description or "", body.parameters or {}, bool(body.strict))
    return list(tools.values())


def _among(tools: Sequence[Tool], names: Sequence[str | None]) -> list[Tool]:
    """Return the tools with these names; InvalidRequest for an unknown name."""
    known = {tool.name: tool for tool in tools}
    found = [known[name] for name in names if name in known]
    if len(found) < len(names):
        unknown = next(name for name in names if name not in known)
        raise _wrong(f"tool_choice names the function {unknown!r}, but tools has {', '.join(known) or 'none'}.")
    return found


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(text, field="tool_choice")
