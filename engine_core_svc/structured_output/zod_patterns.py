"""Zod patterns: replaces regular expressions of Zod that use look-ahead by equal ones without it.

TypeScript programs write their schemas with Zod: Vercel's AI SDK, OpenAI's and Anthropic's clients, LangChain.js. A replacement
matches the same texts. That of e-mail addresses is Zod's own of 4.6.
"""

from typing import Any

_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_EMAIL_WITHOUT = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"

_DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_DURATION_WITHOUT = rf"^P(?:\d+W|(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)(?:{_TIME})?|{_TIME})$"

_LABEL_END = r"(?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_LABELS = rf"[a-zA-Z0-9]{_LABEL_END}(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{{0,61}}[0-9a-zA-Z])?)*"
_HOSTNAME = rf"^(?=.{{1,253}}\.?$){_LABELS}\.?$"
_HOSTNAME_LENGTHS = {rf"^{_LABELS}$": 253, rf"^{_LABELS}\.$": 254}

_REPLACEMENTS = {_EMAIL: _EMAIL_WITHOUT, _DURATION: _DURATION_WITHOUT}


def without_zods_look_ahead(pattern: str) -> str:
    """Return the equal pattern without look-ahead of a pattern of Zod; any other pattern unchanged."""
    return _REPLACEMENTS.get(pattern, pattern)


def with_hostname_lengths(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with Zod's pattern of host names as patterns and lengths; any other schema unchanged."""
    if schema.get("pattern") != _HOSTNAME or "anyOf" in schema:
        return schema
    names = [{"type": "string", "pattern": pattern, "maxLength": most} for pattern, most in _HOSTNAME_LENGTHS.items()]
    return {key: value for key, value in schema.items() if key not in ("pattern", "format")} | {"anyOf": names}
