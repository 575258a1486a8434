"""Text grammars: converts regular expressions, choices and grammars to llguidance's form.

A grammar may be written as Lark or as EBNF (llama.cpp's GBNF, `root ::= ...`); the syntax of its rules decides which it is.
"""

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from tetrad.engine_core_svc.structured_output.constraint import Language, refusal

_MAX_EBNF_CHARS = 64 << 10
"""Maximum length of an EBNF grammar, in characters; the converter is plain Python and too slow for longer ones."""

_UNICODE_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def regex_grammar(language: Language) -> str:
    """Return the grammar of the texts that match the expression as a whole."""
    return LLMatcher.grammar_from_regex(language.text)


def choice_grammar(language: Language) -> str:
    """Return the grammar of a JSON list of texts: one terminal, which stays fast for many thousands of texts."""
    choices = json.loads(language.text)
    if not any(choices):
        raise refusal("choice must have an entry that is not empty.")
    return "start: CHOICE\nCHOICE: " + " | ".join(quoted(choice) for choice in choices)


def grammar(language: Language) -> str:
    """Return a grammar in Lark notation, converted from EBNF if necessary. Raises InvalidRequest if it is neither."""
    if is_lark_syntax(language.text):
        return language.text
    if "::=" not in language.text:
        raise refusal("The grammar is neither Lark (it has no rule `start:`) nor EBNF (it has no rule `root ::=`).")
    if len(language.text) > _MAX_EBNF_CHARS:
        raise refusal(f"An EBNF grammar may have {_MAX_EBNF_CHARS} characters, got {len(language.text)}; Lark may be longer.")
    try:
        return gbnf_to_lark(_UNICODE_ESCAPE.sub(_plain, language.text))
    except Exception as error:  # the converter raises bare Exception, and RecursionError for deep nesting
        raise refusal(f"The EBNF grammar cannot be read: {error}.") from error


def quoted(text: str) -> str:
    """Return a text as a Lark string."""
    # The only character that JSON text may contain, but a Lark string may not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(match: re.Match[str]) -> str:
    """Return the character of an escape beyond ASCII, since the converter drops leading zeros of escapes."""
    code = int(match[2] or match[3], 16)
    return match[1] + chr(code) if 0x80 <= code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else match[0]
