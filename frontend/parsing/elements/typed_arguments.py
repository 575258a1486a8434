"""Typed arguments: converts values that a model writes as plain text to JSON, according to the tool's schema.

Used by formats that write parameters as tags. Strings are passed on while they arrive; other values must be complete before
their type is known.
"""

import json
from typing import Any

from tetrad.frontend.parsing.elements.json_text import json_text
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.python_literals import literal_json

_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_STRING = frozenset({"string"})
_OTHERS = frozenset(_KINDS.values()) - _STRING
_OTHER_NAMES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
}
"""Types that JSON schema does not define, but hand-written tools use."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


class ArgumentsWriter:
    """Writes the arguments of the last call.

    Args:
        writer: receives the arguments.
        parameters: the tool's schema; empty if the tool is unknown.
        trims_newlines: whether values are on separate lines, so that one newline before and one after do not belong to them.
    """

    def __init__(self, writer: PieceWriter, parameters: dict[str, Any], *, trims_newlines: bool) -> None:
        properties = parameters.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._writer = writer
        self._trims_newlines = trims_newlines
        self._separator = "{"

    def begin_value(self, name: str, *, is_string: bool | None = None) -> "ValueWriter":
        """Start a parameter and return the writer of its value.

        Args:
            name: name of the parameter.
            is_string: whether the model marked the value as a string; None: the schema determines the type.
        """
        self._writer.arguments(f"{self._separator}{json_text(name)}: ")
        self._separator = ", "
        kinds = kinds_of(self._properties.get(name)) if is_string is None else _STRING if is_string else _OTHERS
        return ValueWriter(self._writer, kinds, trims_newlines=self._trims_newlines)

    def add_json(self, name: str, value: str) -> None:
        """Write a parameter whose value is complete JSON."""
        self._writer.arguments(f"{self._separator}{json_text(name)}: {value}")
        self._separator = ", "

    def end(self) -> None:
        """Close the arguments' object."""
        self._writer.arguments("{}" if self._separator == "{" else "}")


class ValueWriter:
    """Writes one value."""

    def __init__(self, writer: PieceWriter, kinds: frozenset[str], *, trims_newlines: bool) -> None:
        self._writer = writer
        self._kinds = kinds
        self._streams = kinds == {"string"}
        self._trims_newlines = trims_newlines
        self._at_beginning = True
        self._newline = ""
        self._parts: list[str] = []
        if self._streams:
            writer.arguments('"')

    def add(self, text: str) -> None:
        """Append text of the value."""
        if self._trims_newlines and text:
            text = self._trimmed(text)
        if self._streams:
            self._writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._parts.append(text)

    def end(self) -> None:
        """Finish the value: it is complete."""
        self._writer.arguments('"' if self._streams else value_json("".join(self._parts), self._kinds))

    def cut(self) -> None:
        """Finish an incomplete value: its text so far is written unchanged."""
        self._writer.arguments("".join(self._parts))

    def _trimmed(self, text: str) -> str:
        if self._at_beginning:
            text = text.removeprefix("\n")
            self._at_beginning = False
            if not text:
                return ""
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        return text.removesuffix("\n")


def value_json(text: str, kinds: frozenset[str]) -> str:
    """Return the JSON of a value: of one of `kinds` if its text has this form, else a string."""
    bare = text.strip()
    for candidate in (bare, _WORDS.get(bare.lower()), _without_line_breaks(bare), literal_json(bare)):
        if candidate is not None and _kind(candidate) in kinds - {"string"}:
            return candidate
    return json_text(text)


def _without_line_breaks(text: str) -> str | None:
    """Return JSON with escapes in place of line breaks in its strings, which models write there; None for other text."""
    try:
        return json_text(json.loads(text, strict=False, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _kind(text: str) -> str | None:
    try:
        return _KINDS[type(json.loads(text, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def kinds_of(schema: Any) -> frozenset[str]:
    """Return the kinds of values that a parameter's schema allows; a string if it names none."""
    if not isinstance(schema, dict):
        return frozenset({"string"})
    kinds = frozenset(_named_kinds(schema))
    if not kinds:
        return frozenset(_KINDS.values()) if "$ref" in schema or "allOf" in schema else frozenset({"string"})
    return kinds | {"integer", "number"} if kinds & {"integer", "number"} else kinds


def _named_kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str | list):
        names = [kind] if isinstance(kind, str) else [each for each in kind if isinstance(each, str)]
        return [_OTHER_NAMES.get(name, name) for name in names]
    constants = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    lists = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    members = [each for members in lists for each in members if isinstance(each, dict)]
    return [_KINDS.get(type(each), "string") for each in constants] + [
        kind for each in members for kind in (_named_kinds(each) or _KINDS.values())
    ]
