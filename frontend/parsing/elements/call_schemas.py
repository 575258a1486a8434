"""Call schemas: makes JSON schemas of tool calls, for constraints on a model's output. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

# Keywords whose values are data, in which "$ref" has no meaning.
_DATA = frozenset({"const", "enum", "default", "examples"})
# Keywords whose values map the user's names to schemas.
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


# Returns the properties of a call, all of which are required, from the tool's name and the schema of its arguments.
CallShape = Callable[[str, dict[str, Any]], dict[str, Any]]


def parameters_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of {"name": ..., "parameters": {...}}."""
    return {"name": {"const": name}, "parameters": arguments}


def arguments_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of {"name": ..., "arguments": {...}}."""
    return {"name": {"const": name}, "arguments": arguments}


def required_schema(tools: Sequence[Tool], *, parallel: bool, shape: CallShape = parameters_call) -> dict[str, Any]:
    """Return the JSON schema of an array of at least one call of `tools`; of exactly one unless `parallel`.

    Raises:
        InvalidRequest: a tool's parameters are not the schema of an object.
    """
    shapes = [shape(tool.name, {"$ref": f"#/$defs/{index}"}) for index, tool in enumerate(tools)]
    calls = [
        {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        for properties in shapes
    ]
    # Each tool's whole schema is placed under $defs, so two tools may use the same name for different definitions.
    definitions = {str(index): _moved(named_schema(tool), f"#/$defs/{index}") for index, tool in enumerate(tools)}
    schema = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": definitions}
    return schema if parallel else {**schema, "maxItems": 1}


def named_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments.

    Raises:
        InvalidRequest: its parameters are not the schema of an object.
    """
    schema = tool.parameters
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"The parameters of tool {tool.name!r} must be a JSON schema, not {type(schema).__name__}.", field="tools"
        )
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kind = schema.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        text = f'The parameters of tool {tool.name!r} must have "type": "object", not {kind!r}.'
        raise InvalidRequest(text, field="tools")
    return {**schema, "type": "object"}


def _moved(schema: Any, root: str) -> Any:
    """Return a schema for the place `root` of another schema: its references to itself are changed to that place."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _moved_value(key, value, root) for key, value in schema.items() if key not in ("$id", "$schema")}


def _moved_value(keyword: str, value: Any, root: str) -> Any:
    if keyword == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return root + value[1:]
    if keyword in _DATA:
        return value
    if keyword in _MAPS and isinstance(value, dict):
        return {name: _moved(each, root) for name, each in value.items()}
    return _moved(value, root)
