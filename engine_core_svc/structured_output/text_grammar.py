"""Text grammars: converts regular expressions, choices and grammars to llguidance's form.

A grammar may be written as Lark or as EBNF (llama.cpp's GBNF, `root ::= ...`); the syntax of its rules decides which it is.
"""

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from tetrad.engine_core_svc.structured_output.constraint import Language, refusal

_MAX_EBNF_CHARS = 64 << 10
"""Maximum length of an EBNF grammar, in characters; the converter is plain Python and too slow for longer ones."""

_LARK = re.compile(r"^[ \t]*(%llguidance\b|[?!]?start[ \t]*(\[[^\]\n]*\])?[ \t]*:(?!:=))", re.MULTILINE)
"""The parts that only Lark has: the header, or a rule `start:`, which may have a mark and attributes."""

_EBNF_PART = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|(?P<comment>\#[^\n]*)"""
    r"|(?P<start>(?<![\w-])start(?![\w-]))|(?P<gap>(?<!\s)(?:\s++(?:\#[^\n]*+)?)++(?=\|))",
    re.DOTALL,
)
"""Parts of an EBNF grammar that the converter does not read: some escapes, a rule `start`, alternatives on further lines."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


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
    if _LARK.search(language.text):
        return language.text
    if "::=" not in language.text:
        raise refusal("The grammar is neither Lark (it has no rule `start:`) nor EBNF (it has no rule `root ::=`).")
    if len(language.text) > _MAX_EBNF_CHARS:
        raise refusal(f"An EBNF grammar may have {_MAX_EBNF_CHARS} characters, got {len(language.text)}; Lark may be longer.")
    try:
        return gbnf_to_lark(_EBNF_PART.sub(_plain_part, language.text))
    except Exception as error:  # the converter raises bare Exception, and RecursionError for deep nesting
        raise refusal(f"The EBNF grammar cannot be read: {error}.") from error


def quoted(text: str) -> str:
    """Return a text as a Lark string."""
    # The only character that JSON text may contain, but a Lark string may not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain_part(match: re.Match[str]) -> str:
    """Return a part of an EBNF grammar in the form that the converter reads."""
    match match.lastgroup:
        case "text":
            return _ESCAPE.sub(_plain_escape, match[0])
        case "start":
            return "start-rule"  # the converter names the rule `root` so
        case "gap":
            return " "
    return match[0]


def _plain_escape(match: re.Match[str]) -> str:
    """Return an escape that the converter keeps: it drops leading zeros, and knows no escaped hyphen."""
    if match[3] is not None:
        return f"\\x{ord(match[3]):02x}" if match[3] in "[]-" else match[0]
    code = int(match[1] or match[2], 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else match[0]
