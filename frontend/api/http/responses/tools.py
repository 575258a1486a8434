"""Tools: converts tools of the Responses API to a conversation's functions and tool choice. Pure.

A function of a namespace is one function for the model, under a joined name; calls name both parts to the client. A custom
tool is a function with one argument (custom_tools.py).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tetrad.frontend.api.http.responses.bodies import FunctionBody, InputBody, ToolBody, ToolChoiceBody
from tetrad.frontend.api.http.responses.custom_tools import CUSTOM, custom_tool
from tetrad.frontend.chat.conversation import NamedTool, ToolChoice
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FUNCTION = "function"
_CALLABLE = (_FUNCTION, CUSTOM)
_NAMESPACE = "namespace"
_WEB_SEARCH = "web_search"


def chosen_tools(body: InputBody) -> tuple[list[Tool], ToolChoice]:
    """Return the functions that may be called and the tool choice; InvalidRequest for an invalid choice."""
    tools = _tools(body.tools or ())
    choice = body.tool_choice
    if not isinstance(choice, ToolChoiceBody):
        if choice == "required" and not tools:
            raise _wrong("When using `tool_choice`, `tools` must be set.")
        return tools, choice or "auto"
    if choice.type in _CALLABLE:
        [named] = _among(tools, [choice.name])
        return tools, NamedTool(named.name)
    if choice.type != "allowed_tools":
        raise _wrong(f"tool_choice of type {choice.type!r} is not supported, only 'function', 'custom' and 'allowed_tools'.")
    other = next((tool.type for tool in choice.tools or () if tool.type not in _CALLABLE), None)
    if other is not None:
        raise _wrong(f"tool_choice.tools: tools of type {other!r} are not supported, only 'function' and 'custom'.")
    allowed = _among(tools, list(dict.fromkeys(tool.name for tool in choice.tools or ())))
    if not allowed:
        raise _wrong("tool_choice of type 'allowed_tools' needs tools.")
    return allowed, choice.mode or "auto"


def offered(bodies: Sequence[ToolBody]) -> list[tuple[int, ToolBody]]:
    """Return the tools and their places, without a web search beside functions: Codex always sends one."""
    placed = list(enumerate(bodies))
    return [(place, body) for place, body in placed if body.type != _WEB_SEARCH] or placed


def joined_name(namespace: str | None, name: str) -> str:
    """Return the name of a function for the model."""
    return f"{namespace}__{name}" if namespace else name


def called_function(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the fields of a call that name its function, from the name that the model wrote.

    Args:
        name: a name as of `joined_name`.
        tools: the tools of the response, as JSON.
    """
    for space in tools:
        for tool in space.get("tools", ()):
            if joined_name(space["name"], tool["name"]) == name:
                return {"name": tool["name"], "namespace": space["name"]}
    return {"name": name}


def is_custom(name: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a call is of a custom tool; arguments: see `called_function`."""
    return any(
        tool["type"] == CUSTOM and joined_name(namespace, tool["name"]) == name
        for each in tools
        for namespace, tool in ((each["name"], tool) for tool in each.get("tools", ()))
    ) or any(each["type"] == CUSTOM and each["name"] == name for each in tools)


def _tools(bodies: Sequence[ToolBody]) -> list[Tool]:
    tools: dict[str, Tool] = {}
    for place, body in offered(bodies):
        for path, tool in _functions(f"tools.{place}", body):
            if tool.name in tools:
                raise InvalidRequest(f"{path}.name: {tool.name!r} is used more than once.", field=f"{path}.name")
            tools[tool.name] = tool
    return list(tools.values())


def _functions(path: str, body: ToolBody) -> Iterator[tuple[str, Tool]]:
    """Yield the functions of a tool, each with its path."""
    if body.type != _NAMESPACE:
        yield path, _function(path, body, None)
        return
    namespace = _name(path, body)
    if not body.tools:
        raise InvalidRequest(f"{path}.tools: a namespace needs functions.", field=f"{path}.tools")
    for place, member in enumerate(body.tools):
        yield f"{path}.tools.{place}", _function(f"{path}.tools.{place}", member, namespace)


def _function(path: str, body: FunctionBody, namespace: str | None) -> Tool:
    if body.type not in _CALLABLE:
        text = f"{path}: tools of type {body.type!r} are not supported by this server, only 'function' and 'custom'."
        raise InvalidRequest(text, field=f"{path}.type")
    name = joined_name(namespace, _name(path, body))
    if body.type == CUSTOM:
        return custom_tool(name, body, path)
    if body.format is not None:
        raise InvalidRequest(f"{path}.format: a function has no format; its parameters do.", field=f"{path}.format")
    return Tool(name, body.description or "", body.parameters or {}, bool(body.strict))


def _name(path: str, body: FunctionBody) -> str:
    name = body.name or ""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{path}.name must match {_NAME.pattern}, got {name[:80]!r}.", field=f"{path}.name")
    return name


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
