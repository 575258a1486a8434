"""Constraint: the language that a request's output must belong to, as plain values.

Made from messages by wire.py. Languages are compiled and cached; a Constraint is a language with one request's own conditions.
"""

import hashlib
from dataclasses import astuple, dataclass
from typing import Literal

from tetrad.services.errors import InvalidRequest

LanguageKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]

FIELD = "structured_outputs"


@dataclass(frozen=True, slots=True)
class Language:
    """A set of texts.

    Attributes:
        kind: how `text` is to be read.
        text: JSON schema, regular expression, JSON list of choices, grammar or structural tag; empty for json_object.
        disable_any_whitespace: no white space between JSON tokens.
        disable_additional_properties: objects of a JSON schema that list properties have no others.
        whitespace_pattern: regular expression for white space between JSON tokens; None: a bounded default.
    """

    kind: LanguageKind
    text: str
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def digest(self) -> bytes:
        """Return a hash that differs between languages."""
        return hashlib.sha256(repr(astuple(self)).encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint of one request.

    Attributes:
        opening: what opens the stretch that `start_after` closes; the language of an output that does not begin with it begins
            at once. Empty: the stretch is open from the start.
        start_after: the language begins behind these ids in the output; empty: at once.
        ignore_eos: EOS is not allowed while anything else is.
        min_tokens: EOS and stop ids are not allowed before this many output tokens exist.
        stop_token_ids: ids that end the request.
        allowed_token_ids: if not empty, no others are allowed.
    """

    language: Language
    opening: tuple[int, ...] = ()
    start_after: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()


def refusal(text: str) -> InvalidRequest:
    """Return the error of a constraint that cannot be used."""
    return InvalidRequest(text, field=FIELD)
