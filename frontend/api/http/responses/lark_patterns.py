"""Lark patterns: converts a grammar in Lark's notation to a regular expression. Pure.

The arguments of a call are JSON, in which a JSON schema can hold a text to a pattern, but not to a grammar. Grammars without
recursion have an equal pattern; others are refused.
"""

import json
import re
from collections.abc import Iterator

from tetrad.services.errors import InvalidRequest

_MAX_LENGTH = 32_768
"""Length of a pattern, in characters: each use of a rule repeats its pattern."""

_TOKEN = re.compile(
    r"""
      (?P<skip>     \s+ | //[^\n]* )
    | (?P<string>   "(?:\\.|[^"\\\n])*"i? )
    | (?P<regex>    /(?!/)(?:\\.|[^/\\\n])+/[imsx]* )
    | (?P<count>    ~\s*\d+(?:\s*\.\.\s*\d+)? | \{\d+(?:,\d*)?\} )
    | (?P<alias>    ->\s*\w+ )
    | (?P<import>   %import\s+common\s*(?:\.\s*\w+(?:\s*->\s*\w+)?|\([^)]*\)) )
    | (?P<start>    [?!]*[A-Za-z_]\w*(?:\.-?\d+)?\s*: )
    | (?P<name>     [A-Za-z_]\w* )
    | (?P<sign>     \.\. | [|()\[\]?*+] )
    | (?P<other>    %\w+ | . )
    """,
    re.VERBOSE,
)
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+(?:[eE][+-]?[0-9]+)|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "SIGNED_NUMBER": r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z_0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}


def pattern_of_lark(grammar: str, field: str) -> str:
    """Return a pattern that matches the texts of the grammar's rule `start`.

    Args:
        grammar: the grammar.
        field: the field of the request that has it, for errors.

    Raises:
        InvalidRequest: the grammar is not in Lark's notation, has recursive rules or `%ignore`, or its pattern is too long.
    """
    try:
        return _Grammar(grammar, field).pattern("start")
    except RecursionError as error:
        text = f"{field}: the Lark grammar cannot be used: it is nested too deeply."
        raise InvalidRequest(text, field=field) from error


class _Grammar:
    """The rules of a grammar, each as its tokens.

    Args:
        text: the grammar.
        field: the field of the request, for errors.
    """

    def __init__(self, text: str, field: str) -> None:
        self._field = field
        self._rules: dict[str, list[tuple[str, str]]] = {}
        self._patterns: dict[str, str] = {}
        self._open: list[str] = []
        rule: list[tuple[str, str]] | None = None
        for kind, token in _tokens(text):
            match kind:
                case "start":
                    rule = self._rules.setdefault(re.sub(r"[?!]|(\.-?\d+)?\s*:$", "", token), [])
                case "import":
                    self._import(token)
                case "other":
                    raise self._wrong(f"{token!r:.20} is not supported")
                case _ if rule is None:
                    raise self._wrong(f"{token!r:.20} stands before the first rule")
                case _:
                    rule.append((kind, token))

    def pattern(self, name: str) -> str:
        """Return the pattern of a rule."""
        if name in self._patterns:
            return self._patterns[name]
        if name in self._open:
            raise self._wrong(f"the rule {name!r} is recursive, and an input can be held to rules without recursion only")
        if name not in self._rules:
            raise self._wrong(f"there is no rule {name!r}")
        self._open.append(name)
        tokens = [*self._rules[name]]
        pattern = self._alternatives(tokens)
        if tokens:
            raise self._wrong(f"{tokens[0][1]!r:.20} is unexpected in the rule {name!r}")
        self._open.pop()
        self._patterns[name] = pattern
        return pattern

    def _alternatives(self, tokens: list[tuple[str, str]]) -> str:
        """Take alternatives from the tokens' front, up to a closing bracket or the end."""
        options = [self._sequence(tokens)]
        while tokens and tokens[0][1] == "|":
            tokens.pop(0)
            options.append(self._sequence(tokens))
        return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"

    def _sequence(self, tokens: list[tuple[str, str]]) -> str:
        parts, length = [], 0
        while tokens and tokens[0][1] not in ("|", ")", "]"):
            part = self._atom(tokens)
            while tokens and (tokens[0][0] == "count" or tokens[0][1] in ("?", "*", "+")):
                part = f"(?:{part}){_repetition(tokens.pop(0)[1])}"
            if tokens and tokens[0][0] == "alias":
                tokens.pop(0)
            parts.append(part)
            length += len(part)
            if length > _MAX_LENGTH:
                raise self._wrong(f"as a pattern the rule {self._open[-1]!r} is longer than {_MAX_LENGTH} characters")
        return "".join(parts)

    def _atom(self, tokens: list[tuple[str, str]]) -> str:
        kind, token = tokens.pop(0)
        match kind:
            case "string" if len(tokens) > 1 and tokens[0][1] == "..":
                return f"[{self._escaped(token)}-{self._escaped(self._range_end(tokens))}]"
            case "string":
                text = self._escaped(token.removesuffix("i"))
                return f"(?i:{text})" if token.endswith("i") else text
            case "regex":
                body, _, flags = token[1:].rpartition("/")
                body = body.replace(r"\/", "/")
                return f"(?{flags}:{body})"
            case "name":
                return self.pattern(token)
        closing = {"(": ")", "[": "]"}.get(token)
        if closing is None:
            raise self._wrong(f"{token!r:.20} is unexpected in the rule {self._open[-1]!r}")
        inner = self._alternatives(tokens)
        if not tokens or tokens.pop(0)[1] != closing:
            raise self._wrong(f"the rule {self._open[-1]!r} has a {token!r} without {closing!r}")
        return f"(?:{inner})?" if token == "[" else f"(?:{inner})"

    def _escaped(self, literal: str) -> str:
        """Return a pattern of a literal in quotes; escapes that JSON does not have stand for their character."""
        body = re.sub(r'\\(?!["\\/bfnrtu])(.)', r"\1", literal[1:-1])
        try:
            text = json.loads(f'"{body}"', strict=False)
        except ValueError as error:
            raise self._wrong(f"{literal:.20} has an escape that JSON does not have") from error
        return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)

    def _range_end(self, tokens: list[tuple[str, str]]) -> str:
        tokens.pop(0)
        kind, token = tokens.pop(0)
        if kind != "string":
            raise self._wrong(f"a range ends with {token!r:.20}")
        return token

    def _import(self, token: str) -> None:
        names = re.sub(r"%import\s+common", "", token).strip(" .()")
        for each in names.split(","):
            name, _, alias = (part.strip() for part in each.partition("->"))
            if name not in _COMMON:
                raise self._wrong(f"%import knows no common.{name:.40}")
            self._patterns[alias or name] = _COMMON[name]

    def _wrong(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: the Lark grammar cannot be used: {reason}.", field=self._field)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        if found.lastgroup and found.lastgroup != "skip":
            yield found.lastgroup, found[0]


def _repetition(token: str) -> str:
    if not token.startswith("~"):
        return token
    return "{" + ",".join(part.strip() for part in token[1:].split("..")) + "}"
