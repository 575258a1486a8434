"""Property names: replaces `propertyNames` of a schema by listed properties, if it allows any name or lists the names.

Zod writes the first form for every record, Zod and Pydantic write the second for maps whose keys are literals. If the keys
are an enum, Pydantic refers to its definition.
"""

from typing import Any
from urllib.parse import unquote

_NAMED_PROPERTIES = ("properties", "patternProperties")
_ANNOTATIONS = ("title", "description", "default", "examples")
_MAX_REFERENCES = 16


def with_listed_names(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `propertyNames`, if it has another form; else the schema unchanged.

    Args:
        schema: a schema, in any place of the document.
        root: the document.
    """
    names = _resolved(schema.get("propertyNames"), root)
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


def _resolved(names: Any, root: Any) -> Any:
    """Return the schema that a schema of names refers to, if it only does this; else the schema itself."""
    for _ in range(_MAX_REFERENCES):
        reference = names.get("$ref") if isinstance(names, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/") or names.keys() - {"$ref", *_ANNOTATIONS}:
            return names
        names = root
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            names = names.get(key) if isinstance(names, dict) else None
    return names
