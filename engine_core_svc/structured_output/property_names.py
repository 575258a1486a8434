"""Property names: replaces `propertyNames` of a schema by listed properties or by a pattern, if it has an equal form.

Zod writes the first form for every record, Zod and Pydantic write the second for maps whose keys are literals. If the keys
are an enum, Pydantic refers to its definition.
"""

from collections.abc import Set as AbstractSet
from typing import Any
from urllib.parse import unquote

from tetrad.engine_core_svc.structured_output.decimal_pattern import without_look_ahead

_NAMED_PROPERTIES = ("properties", "patternProperties")
ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_MAX_REFERENCES = 16


def with_listed_names(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `propertyNames`, if it has another form; else the schema unchanged.

    Args:
        schema: a schema, in any place of the document.
        root: the document.
    """
    names = resolved(schema.get("propertyNames"), root)
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    if names is True:
        return rest
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return schema
    rules = names.keys() - {"type", *ANNOTATIONS}
    if not rules:
        return rest
    values = schema.get("additionalProperties", True)
    if values is False or not rest.keys().isdisjoint(_NAMED_PROPERTIES):
        return schema
    listed = names.get("enum", [names.get("const")])
    if (rules <= {"enum"} or rules <= {"const"}) and isinstance(listed, list):
        properties = {name: values for name in listed if isinstance(name, str)}
        return {**rest, "properties": properties, "additionalProperties": False}
    pattern = _pattern_of(names, rules)
    return {**rest, "patternProperties": {pattern: values}, "additionalProperties": False} if pattern else schema


def _pattern_of(names: dict[str, Any], rules: AbstractSet[str]) -> str:
    """Return the pattern of the names that a schema's rules allow; empty: it is not known."""
    if rules == {"pattern"} and isinstance(names["pattern"], str):
        return without_look_ahead(names["pattern"])
    if rules == {"format"} and names["format"] == "uuid":
        return _UUID
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    if rules <= {"minLength", "maxLength"} and type(least) is int and type(most) in (int, str):
        return rf"^[\s\S]{{{least},{most}}}$"
    return ""


def resolved(schema: Any, root: Any) -> Any:
    """Return the schema that a schema refers to, if it only does this; else the schema itself. `root` is the document."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/") or schema.keys() - {"$ref", *ANNOTATIONS}:
            return schema
        schema = root
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema
