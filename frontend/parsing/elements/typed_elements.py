"""Typed elements: converts the text of an element with nested elements to JSON, according to a schema.

An element has plain text, or the members of an object or a list; only its end shows which, so it must be complete.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from tetrad.frontend.parsing.elements.json_text import json_text
from tetrad.frontend.parsing.elements.typed_arguments import kinds_of, value_json

_LIST_MEMBER = "item"
_TEXT_MEMBER = "$text"
_MAX_REFERENCES = 16
_EMPTY = {frozenset({"array"}): "[]", frozenset({"object"}): "{}"}


@dataclass(slots=True)
class _Element:
    name: str
    schema: Any
    texts: list[str] = field(default_factory=list)
    members: list[tuple[str, str]] = field(default_factory=list)

    def json(self) -> str:
        """Return the element's value as JSON."""
        text, kinds = "".join(self.texts), kinds_of(self.schema)
        if not self.members:
            return _EMPTY.get(kinds, json_text(text)) if not text.strip() else value_json(text, kinds)
        names = {name for name, _ in self.members}
        may_be_list, may_be_object = "array" in kinds, "object" in kinds
        if may_be_list if may_be_list != may_be_object else names == {_LIST_MEMBER}:
            return f"[{', '.join(value for _, value in self.members)}]"
        if text.strip():
            self.members.append((_unused(_TEXT_MEMBER, names), json_text(text)))
        return _object_json(self.members)


class TypedElements:
    """Converts the elements of one call.

    Args:
        mark: text before every tag.
        root: the tool's schema, which has the definitions that the others refer to.
    """

    def __init__(self, mark: str, root: dict[str, Any]) -> None:
        self._tag = re.compile(rf"{re.escape(mark)}<(/?)([^<>\n]+)>")
        self._root = root

    def schema_of(self, parent: Any, name: str) -> Any:
        """Return the schema of a member; None: the parent's schema does not have it."""
        for schema in self._alternatives(parent):
            for found in (
                _mapping(schema.get("properties")).get(name),
                schema.get("items"),
                schema.get("additionalProperties"),
            ):
                if isinstance(found, dict):
                    return self._resolved(found)
        return None

    def json(self, text: str, schema: Any) -> str:
        """Return the JSON of an element with this text. Malformed tags are text."""
        root = _Element("", schema)
        stack, behind = [root], 0
        for tag in self._tag.finditer(text):
            stack[-1].texts.append(text[behind : tag.start()])
            behind = tag.end()
            closes, name = tag[1], tag[2]
            if not closes:
                stack.append(_Element(name, self.schema_of(stack[-1].schema, name)))
            elif stack[-1].name == name and len(stack) > 1:
                element = stack.pop()
                stack[-1].members.append((name, element.json()))
            else:
                return value_json(text, kinds_of(schema))
        root.texts.append(text[behind:])
        return root.json() if len(stack) == 1 else value_json(text, kinds_of(schema))

    def _alternatives(self, schema: Any) -> list[dict[str, Any]]:
        schema = self._resolved(schema)
        if not isinstance(schema, dict):
            return []
        lists = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
        parts = [self._resolved(each) for members in lists for each in members]
        return [schema, *(each for each in parts if isinstance(each, dict))]

    def _resolved(self, schema: Any) -> Any:
        """Return the schema that a schema refers to, or itself."""
        for _ in range(_MAX_REFERENCES):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            schema = self._root
            for key in reference[2:].split("/"):
                schema = _mapping(schema).get(key)
        return schema


def _object_json(members: list[tuple[str, str]]) -> str:
    """Return the JSON of an object; the values of members with the same name become a list."""
    values: dict[str, list[str]] = {}
    for name, value in members:
        values.setdefault(name, []).append(value)
    lists = {name: given[0] if len(given) == 1 else f"[{', '.join(given)}]" for name, given in values.items()}
    return "{" + ", ".join(f"{json_text(name)}: {value}" for name, value in lists.items()) + "}"


def _unused(name: str, used: set[str]) -> str:
    while name in used:
        name = f"${name}"
    return name


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
