"""Structural tags: free text with parts that must follow a schema, such as tool calls, as a Lark grammar.

There are two notations. vLLM's older one: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}. The newer one is a
tree: {"type": "structural_tag", "format": {...}} of const_string, json_schema, regex, any_text, tag, sequence, or,
triggered_tags and tags_with_separator. Other types are refused.

Free text up to a literal is a lazy terminal: it ends with the literal's first occurrence, and then the grammar continues. A
model's special tokens are never text; if a literal contains one, the grammar names the token itself.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from tetrad.engine_core_svc.structured_output.constraint import Language, refusal
from tetrad.engine_core_svc.structured_output.json_grammar import prepared_schema
from tetrad.engine_core_svc.structured_output.text_grammar import quoted

_TEXT = "TEXT: /(.|\\n)*/"
_MAX_DEPTH = 32
_NAMES: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}
Json = Mapping[str, Any]


def structural_tag_grammar(language: Language, special_tokens: Mapping[str, int]) -> str:
    """Return the grammar of a structural tag.

    Args:
        language: its text is the tag, as JSON.
        special_tokens: ids of the tokens that are not text, by name.

    Raises:
        InvalidRequest: it is not a structural tag, or has parts that are not supported.
    """
    try:
        tag = json.loads(language.text)
    except (ValueError, RecursionError) as error:
        raise refusal(f"The structural tag is not valid JSON: {error}.") from error
    if not isinstance(tag, dict):
        raise refusal("A structural tag must be an object.")
    writer = _Writer(language, special_tokens)
    expression = writer.format(_newer(tag) if "structures" in tag else _field(tag, "format", dict, "structural_tag"), 0)
    return "\n".join(["%llguidance {}", f"start: {expression}", _TEXT, *writer.rules])


def _newer(tag: Json) -> Json:
    """Return an older structural tag in the newer notation."""
    triggers = _field(tag, "triggers", list, "structural_tag")
    tags = []
    for structure in _field(tag, "structures", list, "structural_tag"):
        if not isinstance(structure, dict) or "schema" not in structure:
            raise refusal("Each of structures must be an object with begin, schema and end.")
        content = {"type": "json_schema", "json_schema": structure["schema"]}
        tags.append({"begin": structure.get("begin"), "content": content, "end": structure.get("end")})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Writer:
    """Writes the grammar's rules; each format becomes an expression that other rules may contain."""

    def __init__(self, language: Language, special_tokens: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self._language = language
        self._special_tokens = special_tokens
        self._formats: dict[str, Callable[[Json, int], str]] = {
            "const_string": lambda form, _: self._literal(_field(form, "value", str, "const_string")),
            "json_schema": lambda form, _: self._json(form.get("json_schema")),
            "regex": lambda form, _: f"/{regex_to_lark(_field(form, 'pattern', str, 'regex'))}/",
            "any_text": lambda _form, _depth: "TEXT",
            "tag": self._tag,
            "sequence": lambda form, depth: self._sequence(_elements(form, "elements", "sequence"), depth),
            "or": lambda form, depth: self._any_of(_elements(form, "elements", "or"), depth),
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def format(self, form: Any, depth: int) -> str:
        """Return the expression of a format."""
        if depth > _MAX_DEPTH:
            raise refusal(f"The structural tag is nested deeper than {_MAX_DEPTH} levels.")
        kind = form.get("type") if isinstance(form, dict) else None
        write = self._formats.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise refusal(f"Structural tags of type {kind!r} are not supported; supported: {', '.join(self._formats)}.")
        return write(form, depth + 1)

    def _tag(self, form: Json, depth: int, skipped: str = "") -> str:
        """Return the expression of a tag without the first characters of its begin, which were read already."""
        begin, ends = _field(form, "begin", str, "tag"), form.get("end")
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(end, str) for end in ends):
            raise refusal("The end of a tag must be a text, or a list of texts.")
        head, content = self._literal(begin.removeprefix(skipped)), form.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            if "" in ends:
                raise refusal("A tag around any_text must have an end that is not empty.")
            return self._rule(f"{head} ({' | '.join(self._text_until(end) for end in ends)})")
        return self._rule(f"{head} {self.format(content, depth)} ({' | '.join(self._literal(end) for end in ends)})")

    def _sequence(self, elements: Sequence[Any], depth: int) -> str:
        parts, skipped = [], ""
        for element, following in zip(elements, [*elements[1:], None], strict=True):
            if not isinstance(element, dict) or element.get("type") != "any_text" or following is None:
                parts.append(self._behind(element, skipped, depth) if skipped else self.format(element, depth))
                skipped = ""
                continue
            skipped = _head(following)
            parts.append(self._text_until(skipped))
        return f"({' '.join(parts)})"

    def _behind(self, element: Json, skipped: str, depth: int) -> str:
        return self._tag(element, depth, skipped) if element["type"] == "tag" else '""'

    def _any_of(self, elements: Sequence[Any], depth: int) -> str:
        return f"({' | '.join(self.format(element, depth) for element in elements)})"

    def _triggered(self, form: Json, depth: int) -> str:
        """Return the expression of free text in which each trigger begins one of the tags."""
        triggers, tags = _elements(form, "triggers", "triggered_tags"), _elements(form, "tags", "triggered_tags")
        calls = []
        for tag in tags:
            begin = _field(tag, "begin", str, "tag")
            # Text ends at the shortest trigger that begins the tag, before a longer one is complete.
            found = [each for each in triggers if isinstance(each, str) and each and begin.startswith(each)]
            trigger = min(found, key=len, default="")
            if not trigger:
                raise refusal(f"No trigger begins the tag {begin!r}; triggers: {json.dumps(triggers)}.")
            # A special token cannot be cut: if the trigger ends inside one, the whole token is the trigger.
            trigger = next((token for token in self._special_tokens if begin.startswith(token)), trigger)
            calls.append(f"{self._text_until(trigger)} {self._tag(tag, depth, trigger)}")
        one = self._rule(" | ".join(calls))
        if form.get("stop_after_first"):
            return one if form.get("at_least_one") else f"({one} | TEXT)"
        return f"({one}{'+' if form.get('at_least_one') else '*'} TEXT)"

    def _separated(self, form: Json, depth: int) -> str:
        """Return the expression of tags with a separator between them and nothing else."""
        one = self._rule(" | ".join(self._tag(tag, depth) for tag in _elements(form, "tags", "tags_with_separator")))
        separator = self._literal(_field(form, "separator", str, "tags_with_separator"))
        many = one if form.get("stop_after_first") else f"({one} ({separator} {one})*)"
        return many if form.get("at_least_one") else f"({many})?"

    def _json(self, schema: Any) -> str:
        return f"%json {json.dumps(prepared_schema(schema, self._language))}"

    def _text_until(self, literal: str) -> str:
        """Return the expression of free text up to and including the first occurrence of a literal."""
        special = self._special_tokens.get(literal)
        if special is not None:
            return self._rule(f"TEXT <[{special}]>")
        if any(token in literal for token in self._special_tokens):
            raise refusal(f"Text may end at a special token or at plain text, not at both: {literal!r}.")
        return self._rule(f"TEXT {quoted(literal)}", lazy=True)

    def _literal(self, text: str) -> str:
        """Return the expression of exactly this text; special tokens in it become references to the tokens."""
        pieces = [text]
        for token in self._special_tokens:
            if token in text:
                pieces = [part for piece in pieces for part in _split(piece, token)]
        named = [f"<[{self._special_tokens[piece]}]>" if piece in self._special_tokens else quoted(piece) for piece in pieces]
        return " ".join(named)

    def _rule(self, expression: str, *, lazy: bool = False) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name


def _split(piece: str, token: str) -> list[str]:
    parts = [part for text in piece.split(token) for part in (text, token)][:-1]
    return [part for part in parts if part]


def _head(form: Any) -> str:
    """Return the literal with which a format begins. Raises InvalidRequest if it has none."""
    key = {"const_string": "value", "tag": "begin"}.get(form.get("type", "")) if isinstance(form, dict) else None
    if key is None or not form.get(key):
        raise refusal("any_text in a sequence must be its last element or stand before a const_string or a tag.")
    return str(_field(form, key, str, form["type"]))


def _elements(form: Json, name: str, kind: str) -> list[Any]:
    elements: list[Any] = _field(form, name, list, kind)
    if not elements:
        raise refusal(f"{name} of {kind} must not be empty.")
    return elements


def _field(form: Any, name: str, wanted: type, kind: str) -> Any:
    value = form.get(name) if isinstance(form, dict) else None
    if not isinstance(value, wanted):
        raise refusal(f"{name} of {kind} must be {_NAMES[wanted]}, got {json.dumps(value)[:50]}.")
    return value
