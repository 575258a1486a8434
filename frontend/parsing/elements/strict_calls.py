"""Strict calls: makes structural tags that constrain calls in the model's own syntax to the tools' schemas.

A tag starts at a trigger and then allows only its listed structures. So all tools are listed, and tools that are not strict
accept any object as arguments. Every text that the format's parser accepts as a call must start with a trigger; otherwise
unconstrained calls are possible.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tetrad.frontend.parsing.elements.call_schemas import named_schema, required_schema
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


def strict_calls(tools: Sequence[Tool], begin: str, end: str) -> dict[str, Any]:
    """Return the tag of an array of calls between `begin`, which is also the trigger, and `end`.

    Raises:
        InvalidRequest: a tool's parameters are not the schema of an object.
    """
    schema = required_schema(_loosened(tools), parallel=True, arguments_key="arguments")
    return {"structures": [{"begin": begin, "schema": schema, "end": end}], "triggers": [begin]}


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    return [tool if tool.strict else replace(tool, parameters={"type": "object"}) for tool in tools]
