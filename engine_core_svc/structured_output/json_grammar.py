"""JSON grammar: converts a JSON schema to llguidance's form.

llguidance refuses every keyword that it does not support, and names it. This file sets the rules for white space and for
additional properties, and removes options of llguidance from the schema.

White space between JSON tokens is limited: without a limit, a degenerate model writes spaces until max_tokens.
"""

import json
from collections.abc import Callable
from typing import Any

from tetrad.engine_core_svc.structured_output.constraint import Language, refusal

DEFAULT_WHITESPACE = r" |\n {0,16}"
"""White space that models print between two tokens: at most one space, or one line break with an indentation."""

_OPTIONS = "x-guidance"
_MAX_DEPTH = 128
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_NAMED_PROPERTIES = ("properties", "patternProperties")
_ANNOTATIONS = ("title", "description", "default", "examples")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def json_schema_grammar(language: Language) -> str:
    """Return the grammar of the documents that a schema describes. Raises InvalidRequest if the text is not a schema."""
    try:
        schema = json.loads(language.text)
    except (ValueError, RecursionError) as error:
        raise refusal(f"The JSON schema is not valid JSON: {error}.") from error
    return _grammar(schema, language)


def json_object_grammar(language: Language) -> str:
    """Return the grammar of all JSON objects."""
    return _grammar({"type": "object"}, language)


def prepared_schema(schema: Any, language: Language) -> dict[str, Any]:
    """Return a schema with the language's options added. Raises InvalidRequest if it is not a schema."""
    if schema is False:
        raise refusal("The JSON schema `false` allows nothing.")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refusal(f"A JSON schema must be an object or a boolean, got {json.dumps(schema)[:50]}.")
    prepared: dict[str, Any] = _rewrite(schema, _closed if language.disable_additional_properties else dict, 0)
    prepared[_OPTIONS] = {"lenient": False, "coerce_one_of": False, **_white_space(language)}
    return prepared


def _grammar(schema: Any, language: Language) -> str:
    return json.dumps({"grammars": [{"json_schema": prepared_schema(schema, language)}]})


def _white_space(language: Language) -> dict[str, object]:
    if language.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": DEFAULT_WHITESPACE if language.whitespace_pattern is None else language.whitespace_pattern}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema; if it lists properties and does not set additionalProperties, exclude additional ones."""
    lists_any = "properties" in schema or "patternProperties" in schema
    return {**schema, "additionalProperties": False} if lists_any and "additionalProperties" not in schema else schema


def _with_listed_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `propertyNames`, if it allows any name or lists the names; else the schema unchanged.

    Zod writes the first form for every record, Zod and Pydantic write the second for maps whose keys are literals.
    """
    names = schema.get("propertyNames")
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    if names is True:
        return rest
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return schema
    rules = names.keys() - {"type", *_ANNOTATIONS}
    if not rules:
        return rest
    listed = names.get("enum", [names.get("const")])
    values = schema.get("additionalProperties", True)
    is_list = rules <= {"enum"} or rules <= {"const"}
    if not is_list or not isinstance(listed, list) or values is False or not rest.keys().isdisjoint(_NAMED_PROPERTIES):
        return schema
    properties = {name: values for name in listed if isinstance(name, str)}
    return {**rest, "properties": properties, "additionalProperties": False}


def _rewrite(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], depth: int) -> Any:
    """Return a schema with `change` applied to it and to every schema inside it."""
    if depth > _MAX_DEPTH:
        raise refusal(f"The JSON schema is nested deeper than {_MAX_DEPTH} levels.")
    if not isinstance(schema, dict):
        return schema
    schema = _with_listed_names(schema)
    kept = {key: value for key, value in schema.items() if key != _OPTIONS and not (key == "uniqueItems" and value is False)}
    for key, value in kept.items():
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            kept[key] = {name: _rewrite(child, change, depth + 1) for name, child in value.items()}
        elif (key in _SCHEMA_LISTS or key == "items") and isinstance(value, list):
            kept[key] = [_rewrite(child, change, depth + 1) for child in value]
        elif key in _SCHEMAS:
            kept[key] = _rewrite(value, change, depth + 1)
    return change(kept)
