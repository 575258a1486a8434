"""Compiled grammar: a language compiled over a vocabulary. Used by the compiler's threads.

All errors of a constraint are found here, before its request is scheduled. The first mask is computed, too: this finds regular
expressions that are small but expensive to follow.
"""

import re
from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from tetrad.engine_core_svc.structured_output.constraint import Language, LanguageKind, refusal
from tetrad.engine_core_svc.structured_output.json_grammar import json_object_grammar, json_schema_grammar
from tetrad.engine_core_svc.structured_output.structural_tags import structural_tag_grammar
from tetrad.engine_core_svc.structured_output.text_grammar import choice_grammar, grammar, regex_grammar
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary, Words

MAX_LANGUAGE_CHARS = 512 << 10
STACK_BYTES = 8 << 20
"""Stack size of the thread that compiles; the system's default may be 2 MiB, for instance with `ulimit -s unlimited`."""
_MAX_ERROR_CHARS = 400
_EXCERPT = re.compile(r"\s*(\d+ \||\^+\s*$)")
"""Lines of llguidance's error that show the place in the grammar: numbered lines, and lines with a caret."""
_UNSUPPORTED_KEYS = "Unimplemented keys: "

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""llguidance's own defaults, except for memory: a state takes 1 to 2 kB, and the cache may hold many grammars."""

_GRAMMARS: dict[LanguageKind, Callable[[Language], str]] = {
    "json_schema": json_schema_grammar,
    "json_object": json_object_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": grammar,
}


class CompiledGrammar:
    """A grammar and its first mask. Immutable; shared by all requests with this language.

    Args:
        language: the language to compile; this takes from under a millisecond to about a second.
        vocabulary: the model's vocabulary.

    Raises:
        InvalidRequest: the language is malformed, too large, or not supported; the message states the problem.
    """

    def __init__(self, language: Language, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        check_size(language)
        self._matcher = LLMatcher(vocabulary.tokens, _grammar_of(language, vocabulary), log_level=0, limits=LIMITS)
        _check(self._matcher, language)
        self.first_mask: Words = np.frombuffer(self._matcher.compute_bitmask(), "<u4")[: vocabulary.num_words].copy()
        _check(self._matcher, language)
        if not (self.first_mask & ~vocabulary.ids_mask(vocabulary.tokens.eos_tokens)).any():
            raise refusal(f"{language.kind} allows no text at all.")

    def new_matcher(self) -> LLMatcher:
        """Return a matcher at the beginning of the text; costs little."""
        return self._matcher.deep_copy()


def check_size(language: Language) -> None:
    """Raise InvalidRequest for a language with more than MAX_LANGUAGE_CHARS characters."""
    if len(language.text) > MAX_LANGUAGE_CHARS:
        raise refusal(f"{language.kind} may have {MAX_LANGUAGE_CHARS} characters, got {len(language.text)}.")


def _grammar_of(language: Language, vocabulary: Vocabulary) -> str:
    try:
        if language.kind == "structural_tag":
            return structural_tag_grammar(language, vocabulary.special_tokens)
        return _GRAMMARS[language.kind](language)
    except UnicodeEncodeError as error:
        raise refusal(f"{language.kind} holds half a surrogate pair: {error.reason}.") from error


def _check(matcher: LLMatcher, language: Language) -> None:
    if matcher.is_error():
        raise refusal(f"{language.kind} cannot be used: {plain_error(matcher.get_error())}")


def plain_error(text: str) -> str:
    """Return llguidance's error as one line for clients."""
    text = text.split("<backtrace>")[0].replace("<non-verbose/>", "").strip()
    if _UNSUPPORTED_KEYS in text:
        keys = text.split(_UNSUPPORTED_KEYS)[1].strip('[]."').replace('"', "")
        return f"these keywords of JSON schema are not supported: {keys}."
    if text.startswith("panic"):
        return "it is too large."
    if text in ("NoExtension", "NoExtensionBias"):
        return "it allows no text at all."
    line = " ".join(" ".join(line for line in text.splitlines() if not _EXCERPT.match(line)).split())
    line = line if len(line) <= _MAX_ERROR_CHARS else line[:_MAX_ERROR_CHARS] + "..."
    return line if line.endswith(".") else line + "."
