"""PromQL, as far as names go: the series that a query reads."""

import re
from collections.abc import Iterator

_STRINGS = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"(?<![\w:.])[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(?!\s*\()")
_KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset", "inf", "nan"}
_COMPARISON = re.compile(r"\s(?:==|!=|<=|>=|<|>)\s[0-9.]+")


def series_of(query: str) -> set[str]:
    """Return the names of the series that a query reads."""
    bare = _LABELS.sub(" ", _STRINGS.sub(" ", query))
    return {name for name in _NAME.findall(bare) if name.lower() not in _KEYWORDS}


def measured_by(alert: str) -> Iterator[str]:
    """Yield what an alert's expression compares with its thresholds: that has a value while nothing is wrong."""
    return (part.strip() for part in re.split(r"\sand\s", _COMPARISON.sub("", alert)))
