"""Zod patterns: replaces regular expressions of Zod that use look-ahead by equal ones without it.

TypeScript programs write their schemas with Zod: Vercel's AI SDK, OpenAI's and Anthropic's clients, LangChain.js. A replacement
matches the same texts. That of e-mail addresses is Zod's own of 4.6.
"""

_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_EMAIL_WITHOUT = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"

_DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_DURATION_WITHOUT = rf"^P(?:\d+W|(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)(?:{_TIME})?|{_TIME})$"

_REPLACEMENTS = {_EMAIL: _EMAIL_WITHOUT, _DURATION: _DURATION_WITHOUT}


def without_zods_look_ahead(pattern: str) -> str:
    """Return the equal pattern without look-ahead of a pattern of Zod; any other pattern unchanged."""
    return _REPLACEMENTS.get(pattern, pattern)
