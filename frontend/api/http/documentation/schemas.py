"""Schemas: short constructors of JSON schemas for answers. Pure; knows JSON schema only.

Every schema is complete without references: OpenAPI allows no definitions inside a path.
"""

from typing import Any

import msgspec
from pydantic import BaseModel

Schema = dict[str, Any]

# All examples have the same model and the same answer.
EXAMPLE_MODEL = "smollm2-135m-instruct"
EXAMPLE_TEXT = "The capital of France is Paris."


def obj(required: str, /, **fields: Schema) -> Schema:
    """Return the schema of an object; `required` lists the fields that are always present, separated by spaces. "*": all."""
    names = list(fields) if required == "*" else required.split()
    return {"type": "object", "required": names, "properties": fields}


def field(kind: str | list[str], description: str, **more: Any) -> Schema:
    """Return the schema of a field of a JSON type."""
    return {"type": kind, "description": description, **more}


def constant(value: str) -> Schema:
    """Return the schema of a field with a constant value, for the type of an object."""
    return {"type": "string", "const": value, "description": f"Always {value}."}


def one_of_type(description: str, types: str) -> Schema:
    """Return the schema of a field with one of a few values, for the type of an object; `types` are separated by spaces."""
    return {"type": "string", "enum": types.split(), "description": description}


def either(**kinds: Schema) -> Schema:
    """Return the schema of a value with one of several forms; the names of the arguments are their titles."""
    return {"oneOf": [{"title": title, **schema} for title, schema in kinds.items()]}


def or_null(schema: Schema) -> Schema:
    """Return a schema that also allows null, with the description at the outer level."""
    described = {"description": schema["description"]} if "description" in schema else {}
    return {"anyOf": [{key: value for key, value in schema.items() if key != "description"}, {"type": "null"}]} | described


def free_object(description: str) -> Schema:
    """Return the schema of an object with any fields, which the client or the model chooses."""
    return {"type": "object", "description": description, "additionalProperties": True}


def body_schema(body: type[BaseModel]) -> Schema:
    """Return the schema of a request body, with the required fields first in each object."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined: Schema = _required_first(_inlined(schema, definitions, ()))
    return inlined


def struct_schema(struct: type[msgspec.Struct]) -> Schema:
    """Return the schema of an answer that is a struct."""
    (schema,), definitions = msgspec.json.schema_components((struct,), ref_template="#/$defs/{name}")
    inlined: Schema = _inlined(schema, definitions, ())
    return inlined


def _required_first(node: Any) -> Any:
    if isinstance(node, list):
        return [_required_first(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: _required_first(value) for key, value in node.items()}
    if isinstance(found.get("properties"), dict):
        required = found.get("required", ())
        found["properties"] = dict(sorted(found["properties"].items(), key=lambda item: item[0] not in required))
    return found


def _inlined(node: Any, definitions: dict[str, Any], within: tuple[str, ...]) -> Any:
    """Return a schema with each reference replaced by its definition."""
    if isinstance(node, list):
        return [_inlined(each, definitions, within) for each in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name not in definitions:
        return {key: _inlined(value, definitions, within) for key, value in node.items()}
    beside = {key: value for key, value in node.items() if key != "$ref"}
    if name in within:  # a type that contains itself is shown once
        return {"type": "object", **beside}
    inlined: Schema = _inlined(definitions[name], definitions, (*within, name))
    return inlined | beside
