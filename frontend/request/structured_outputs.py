"""StructuredOutputsParams: the constraint of an output. Checked here for form only; the engine core compiles it."""

import json as json_module
from collections.abc import Collection
from dataclasses import InitVar, dataclass, field
from typing import Any

from tetrad.frontend.request.sampling_values import check_text
from tetrad.services.errors import InvalidRequest, TetradError

MAX_NESTING = 64
_MAX_START_IDS = 64
FIELD = "structured_outputs"
_JSON = (dict, list, tuple, str, int, float, type(None))


@dataclass
class StructuredOutputsParams:
    """Exactly one constraint, and the options of its compilation.

    Args:
        json: a JSON schema, as text or dict.
        regex: a regular expression for the whole output.
        choice: a list of allowed outputs.
        grammar: a grammar in Lark or EBNF notation.
        json_object: any JSON object.
        structural_tag: structural tags, as JSON text.
        disable_any_whitespace: forbid white space that the grammar does not need.
        disable_additional_properties: treat objects of a schema as closed.
        whitespace_pattern: regular expression for white space between JSON tokens.
        start_after_token_ids: the constraint holds only after these consecutive ids in the output (for example the end of the
            reasoning); before them everything but EOS is allowed. If they begin with a special token, only the last of them is
            allowed after the others.
        opening_token_ids: the ids that open the part that `start_after_token_ids` closes; an output that does not begin with
            these ids is constrained from its first token. None: the part is open from the start.
        request_field: the field of the client's request that has the constraint, for errors.

    Raises:
        InvalidRequest: none or several constraints, or one that is empty.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    start_after_token_ids: list[int] | None = None
    opening_token_ids: list[int] | None = None
    request_field: str = field(default=FIELD, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            self._check()
        except InvalidRequest as error:
            self.name_field(error)
            raise

    def name_field(self, error: TetradError) -> None:
        """Let an error about the constraint name the field that the client's request has."""
        if error.field == FIELD:
            error.field = self.request_field

    def _check(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) > 1:
            raise _wrong(f"You can only use one kind of structured outputs constraint but multiple are specified: {given}")
        if not given:
            raise _wrong("You must use one kind of structured outputs constraint but none are specified.")
        kind = given[0]
        value = getattr(self, kind)
        if value is False or (kind != "json" and not value) or value == "":
            raise _wrong(f"structured_outputs.{kind} cannot be empty, got {value!r}.")
        self._check_texts()
        if kind == "regex" and "\0" in value:
            raise _wrong("structured_outputs.regex cannot contain a NUL character.")
        if kind == "json":
            _check_schema(value, self._name_of("json"))
        for name in ("start_after_token_ids", "opening_token_ids"):
            if getattr(self, name) is not None:
                _check_ids(name, getattr(self, name))
        if self.opening_token_ids is not None and self.start_after_token_ids is None:
            raise _wrong("structured_outputs.opening_token_ids needs start_after_token_ids.")

    def _name_of(self, name: str) -> str:
        return f"{FIELD}.{name}" if self.request_field == FIELD else self.request_field

    def _check_texts(self) -> None:
        """Refuse other types where text is needed, and text that no message can have."""
        names = ("regex", "grammar", "structural_tag", "whitespace_pattern")
        texts = {name: value for name in names if (value := getattr(self, name)) is not None}
        if isinstance(self.json, str):
            texts["json"] = self.json
        choice: object = self.choice
        if choice is not None:
            if isinstance(choice, str) or not isinstance(choice, Collection):
                raise _wrong(f"structured_outputs.choice must be a list of strings, got {choice!r}.")
            texts |= {f"choice[{place}]": each for place, each in enumerate(choice)}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise _wrong(f"{self._name_of(name)} must be a string, got {text!r}.")
            check_text(self._name_of(name), text, field=FIELD)

    @property
    def json_schema(self) -> str:
        """The schema as JSON text."""
        return self.json if isinstance(self.json, str) else json_module.dumps(self.json)


@dataclass
class GuidedDecodingParams(StructuredOutputsParams):
    """The name of StructuredOutputsParams in older versions of vLLM; its further arguments have no effect."""

    backend: InitVar[Any] = field(default=None, kw_only=True)
    backend_was_auto: InitVar[Any] = field(default=False, kw_only=True)
    disable_fallback: InitVar[Any] = field(default=False, kw_only=True)

    def __post_init__(self, *backend: Any) -> None:
        del backend
        super().__post_init__()


def _check_schema(value: str | dict[str, Any], name: str) -> None:
    try:
        schema = json_module.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{name} is not valid JSON: {error}") from error
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise _wrong(f"{name} is nested deeper than {MAX_NESTING} levels.")
        for node in level:
            if not isinstance(node, _JSON):
                raise _wrong(f"{name} must be a JSON schema, as text or dict; it contains {node!r}.")
        level = [child for node in level for child in _children(node)]


def _children(node: object) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return list(node) if isinstance(node, list | tuple) else []


def _check_ids(name: str, ids: object) -> None:
    if not isinstance(ids, list | tuple):
        raise _wrong(f"structured_outputs.{name} must be a list of token ids, got {ids!r}.")
    if not ids or len(ids) > _MAX_START_IDS:
        raise _wrong(f"structured_outputs.{name} must hold 1 to {_MAX_START_IDS} ids, got {len(ids)}.")
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**32:
            raise _wrong(f"structured_outputs.{name} must contain token ids, got {token_id!r}.")


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(text, field=FIELD)
