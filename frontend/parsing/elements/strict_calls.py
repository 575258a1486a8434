"""Strict calls: makes structural tags that constrain calls in the model's own syntax to the tools' schemas.

A tag starts at a trigger and then allows only its listed structures. So all tools are listed, and tools that are not strict
accept any object as arguments. Every text that the format's parser accepts as a call must start with a trigger; otherwise
unconstrained calls are possible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tetrad.frontend.parsing.elements.call_schemas import CallShape, arguments_call, named_schema, required_schema
from tetrad.frontend.parsing.elements.interface import Tool


def strict_call(tools: Sequence[Tool], begin: str, end: str, *, triggers: Sequence[str]) -> dict[str, Any]:
    """Return the tag of a call that consists of `begin`, with the tool's name in place of NAME, the arguments, and `end`.

    Raises:
        InvalidRequest: a tool's parameters are not the schema of an object.
    """
    structures = [
        {"begin": begin.replace("NAME", tool.name), "schema": named_schema(tool), "end": end} for tool in _loosened(tools)
    ]
    return {"structures": structures, "triggers": list(triggers)}


def strict_calls(tools: Sequence[Tool], begin: str, end: str, *, shape: CallShape = arguments_call) -> dict[str, Any]:
    """Return the tag of an array of calls of a shape between `begin`, which is also the trigger, and `end`.

    Raises:
        InvalidRequest: a tool's parameters are not the schema of an object.
    """
    schema = required_schema(_loosened(tools), parallel=True, shape=shape)
    return {"structures": [{"begin": begin, "schema": schema, "end": end}], "triggers": [begin]}


def one_call(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tag of strict calls, changed so that the output ends with the first one."""
    tags = []
    for structure in tag["structures"]:
        schema = structure["schema"]
        schema = {**schema, "maxItems": 1} if schema["type"] == "array" else schema
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": structure["begin"], "content": content, "end": structure["end"]})
    form = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags, "stop_after_first": True}
    return {"type": "structural_tag", "format": form}


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    return [tool if tool.strict else replace(tool, parameters={"type": "object"}) for tool in tools]
