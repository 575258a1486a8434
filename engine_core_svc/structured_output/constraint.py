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
    """A set of texts, described in one of several notations.

    Attributes:
        kind: the notation of `text`.
        text: JSON schema, regular expression, JSON list of choices, grammar or structural tag; empty for json_object.
        disable_any_whitespace: no white space between JSON tokens.
        disable_additional_properties: objects whose JSON schema lists properties have no others.
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
        opening: ids that open the stretch that `start_after` closes; in an output that does not begin with them, the language
            begins at once. Empty: the stretch is open from the start.
        start_after: ids in the output after which the language begins; empty: it begins at once. If they begin with a special
            token, the last of them is the only id that is allowed after the others. Several ids that are all text are found by
            their text, whatever its tokens.
        ignore_eos: EOS is not allowed while any other token is.
        min_tokens: EOS and stop ids are not allowed before this many output tokens exist.
        stop_token_ids: ids that end the request.
        allowed_token_ids: the only ids that are allowed; empty: all ids.
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
