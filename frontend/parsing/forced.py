"""Forced calls: the constraint for an output that must be a call (`tool_choice` required or named), and its parser.

The model's own way of writing calls plays no part: a JSON schema holds the output to calls of the given tools, and these
parsers read what such a schema allows. They are Parsers (interface.py), and as patient: an output may be cut anywhere.
"""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.interface import Tool
from tetrad.frontend.parsing.json_calls import read_calls
from tetrad.frontend.parsing.json_scanner import pass_value, skip_space
from tetrad.frontend.parsing.piece_writer import PieceWriter
from tetrad.frontend.parsing.script_parser import ScriptParser
from tetrad.frontend.parsing.text_source import TextSource, Waiting
from tetrad.services.errors import InvalidRequest

# Keywords whose values are data, where "$ref" is a word like any other.
_DATA = frozenset({"const", "enum", "default", "examples"})
# Keywords whose values map names of the user's choice to schemas.
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


class RequiredParser(ScriptParser):
    """Reads an array of {"name": ..., "parameters": {...}}: see `required_schema`."""

    def __init__(self) -> None:
        super().__init__(_read_required)


class NamedParser(ScriptParser):
    """Reads the arguments of the one function that had to be called: see `named_schema`."""

    def __init__(self, name: str) -> None:
        def read(source: TextSource, writer: PieceWriter) -> Waiting[None]:
            yield from skip_space(source)
            if (yield from source.more()):
                writer.start(name)
                yield from pass_value(source, writer.arguments)

        super().__init__(read)


def required_schema(tools: Sequence[Tool], *, parallel: bool, arguments_key: str = "parameters") -> dict[str, Any]:
    """Return the JSON schema of an array of calls of `tools`, at least one; at most one unless `parallel`.

    Raises:
        InvalidRequest: a tool's parameters are not the schema of an object.
    """
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments_key: {"$ref": f"#/$defs/{index}"}},
            "required": ["name", arguments_key],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    # Each tool's schema stands as a whole under $defs, so two tools may use one name for different definitions.
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
        raise InvalidRequest(f"The parameters of tool {tool.name!r} must be a JSON schema, not {type(schema).__name__}.")
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kind = schema.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise InvalidRequest(f'The parameters of tool {tool.name!r} must have "type": "object", not {kind!r}.')
    return {**schema, "type": "object"}


def _read_required(source: TextSource, writer: PieceWriter) -> Waiting[None]:
    yield from skip_space(source)
    source.record()
    yield from read_calls(source, writer)


def _moved(schema: Any, root: str) -> Any:
    """Return a schema that stands at `root` of another: what it refers to in itself has moved there too."""
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
