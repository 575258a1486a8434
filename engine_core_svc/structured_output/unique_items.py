"""Unique items: replaces `uniqueItems` of a schema by a list of all arrays, if these are few.

Pydantic writes the keyword for a set. A grammar cannot compare items, so only sets of a few listed values have an equal form.
"""

import itertools
import math
from typing import Any

from tetrad.engine_core_svc.structured_output.property_names import ANNOTATIONS, resolved

_MAX_ARRAYS = 400
"""Number of arrays that are listed: those of five values in any order are 326, and compile in a third of a second."""

_MAX_CHARS = 1000
"""Number of characters of all listed values; each is part of most arrays."""

_RULES = frozenset({"type", "items", "uniqueItems", "minItems", "maxItems"})
_PLACES = frozenset({"$schema", "$defs", "definitions"})
_LISTED_TYPES: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}


def with_listed_arrays(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `uniqueItems`, if it has another form; else the schema unchanged.

    Args:
        schema: a schema, in any place of the document.
        root: the document.
    """
    if schema.get("uniqueItems") is not True or schema.get("type") != "array":
        return schema
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if type(least) is not int or (most != math.inf and type(most) is not int):
        return schema
    if most <= 1:
        return {key: value for key, value in schema.items() if key != "uniqueItems"}
    values = _values_of(resolved(schema.get("items"), root))
    if not values or sum(len(str(value)) for value in values) > _MAX_CHARS or schema.keys() - _RULES - ANNOTATIONS - _PLACES:
        return schema
    sizes = range(max(least, 0), int(min(most, len(values))) + 1)
    if not 0 < sum(math.perm(len(values), size) for size in sizes) <= _MAX_ARRAYS:
        return schema
    arrays = [_array(each) for size in sizes for each in itertools.permutations(values, size)]
    return {key: value for key, value in schema.items() if key not in _RULES} | {"anyOf": arrays}


def _values_of(items: Any) -> list[Any]:
    """Return the values that a schema of items lists, each once; none if it does not list them, or has other rules."""
    if not isinstance(items, dict):
        return []
    rules = items.keys() - ANNOTATIONS
    if rules == {"type"}:
        return _LISTED_TYPES.get(str(items["type"]), [])
    listed = items.get("enum", [items["const"]] if "const" in items else None)
    if not rules <= {"type", "enum"} and not rules <= {"type", "const"}:
        return []
    if not isinstance(listed, list) or not all(isinstance(value, str) for value in listed):
        return []
    return list(dict.fromkeys(listed)) if items.get("type", "string") == "string" else []


def _array(values: tuple[Any, ...]) -> dict[str, Any]:
    if not values:
        return {"type": "array", "maxItems": 0}
    items = [{"const": value} for value in values]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(values), "maxItems": len(values)}
