"""JSON grammar: converts a JSON schema to llguidance's form.

llguidance refuses every keyword that it does not support, and names it. This file sets the rules for white space and for
additional properties, rewrites keywords that have an equal form, and removes options of llguidance from the schema.

White space between JSON tokens is limited: without a limit, a degenerate model writes spaces until max_tokens.
"""

import json
from collections.abc import Callable
from typing import Any

from tetrad.engine_core_svc.structured_output.constraint import Language, refusal
from tetrad.engine_core_svc.structured_output.decimal_pattern import without_look_ahead
from tetrad.engine_core_svc.structured_output.property_names import ANNOTATIONS, with_listed_names
from tetrad.engine_core_svc.structured_output.text_formats import with_known_format
from tetrad.engine_core_svc.structured_output.unique_items import with_listed_arrays
from tetrad.engine_core_svc.structured_output.zod_patterns import with_hostname_lengths, without_zods_look_ahead

DEFAULT_WHITESPACE = r" |\n {0,16}"
"""White space that models print between two tokens: at most one space, or one line break with an indentation."""

_OPTIONS = "x-guidance"
# Keyword that llguidance does not support -> its value that allows anything.
_NO_EFFECT: dict[str, Any] = {
    "uniqueItems": False,
    "unevaluatedProperties": True,
    "unevaluatedItems": True,
    "dependencies": {},
    "dependentRequired": {},
    "dependentSchemas": {},
}
_MAX_DEPTH = 128
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
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
    if schema is False or _allows_nothing(schema):
        raise refusal("The JSON schema `false` allows nothing.")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refusal(f"A JSON schema must be an object or a boolean, got {json.dumps(schema)[:50]}.")
    prepared: dict[str, Any] = _rewrite(schema, _Changes(schema, language), 0)
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


class _Changes:
    """The changes of every schema of a document.

    Args:
        root: the document, to which references refer.
        language: the language's options.
    """

    def __init__(self, root: dict[str, Any], language: Language) -> None:
        self._root = root
        self._close: Callable[[dict[str, Any]], dict[str, Any]] = _closed if language.disable_additional_properties else dict

    def before(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with keywords that llguidance does not support in an equal form, if they have one."""
        changed = with_hostname_lengths(with_listed_arrays(with_listed_names(schema, self._root), self._root))
        changed = with_known_format(changed)
        kept = {key: value for key, value in changed.items() if not _is_ignored(key, value)}
        if isinstance(pattern := kept.get("pattern"), str):
            kept["pattern"] = without_look_ahead(without_zods_look_ahead(pattern))
        return kept

    def after(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema whose inner schemas have been changed."""
        return self._close(schema)


def _allows_nothing(schema: Any) -> bool:
    """Return whether a schema is {"not": {}}, which Zod writes for values that are left out."""
    return isinstance(schema, dict) and schema.keys() - ANNOTATIONS == {"not"} and schema["not"] in ({}, True)


def _is_ignored(key: str, value: Any) -> bool:
    """Return whether a keyword is an option of llguidance, or has no effect."""
    return key == _OPTIONS or (key in _NO_EFFECT and value == _NO_EFFECT[key] and type(value) is type(_NO_EFFECT[key]))


def _rewrite(schema: Any, changes: _Changes, depth: int) -> Any:
    """Return a schema with the changes applied to it and to every schema inside it."""
    if depth > _MAX_DEPTH:
        raise refusal(f"The JSON schema is nested deeper than {_MAX_DEPTH} levels.")
    if not isinstance(schema, dict):
        return schema
    if _allows_nothing(schema):
        return False
    kept = changes.before(schema)
    for key, value in kept.items():
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            kept[key] = {name: _rewrite(child, changes, depth + 1) for name, child in value.items()}
        elif (key in _SCHEMA_LISTS or key == "items") and isinstance(value, list):
            kept[key] = [_rewrite(child, changes, depth + 1) for child in value]
        elif key in _SCHEMAS:
            kept[key] = _rewrite(value, changes, depth + 1)
    return changes.after(kept)
