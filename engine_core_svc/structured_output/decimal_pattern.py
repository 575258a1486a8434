"""Decimal pattern: converts Pydantic's patterns of decimals, which have look-ahead, to patterns without it.

Pydantic before 2.14 writes one of four patterns, by the limits of digits. All start with a look-ahead that excludes texts
without a digit. Two also bound the number of digits by a look-ahead, and leave the end open, so that they match any text
behind a decimal. The converted patterns match exactly the decimals within the limits.
"""

import re
from collections.abc import Callable

# More digits would make a long pattern of many alternatives.
_MAX_DIGITS = 128


def _pattern(text: str) -> re.Pattern[str]:
    """Return what matches a pattern of Pydantic, in which a letter in angle brackets stands for a limit, always the same."""
    parts = re.split(r"<(\w)>", r"^(?!^[-+.]*$)[+-]?0*" + text)
    given: set[str] = set()
    source = ""
    for index, part in enumerate(parts):
        if index % 2 == 0:
            source += re.escape(part)
        else:
            source += f"(?P={part})" if part in given else rf"(?P<{part}>\d{{1,3}})"
            given.add(part)
    return re.compile(source)


def _any_decimal() -> str:
    return r"[0-9]+\.?[0-9]*|\.[0-9]+"


def _with_places(*, p: int) -> str:
    return f"[0-9]+({_fraction(p)})?|{_bare_fraction(p)}"


def _with_digits(*, d: int, m: int) -> str:  # noqa: ARG001 - m counts the dot, too
    parts = [f"0*[0-9]{{{integers}}}{_fraction(d - integers)}" for integers in range(1, d + 1)]
    return "|".join((_integer(d), f"0+{_fraction(d)}", _bare_fraction(d), *parts))


def _with_digits_and_places(*, i: int, m: int, p: int) -> str:
    places = min(p, m - 1)  # m counts the dot, too
    return f"{_integer(i)}({_fraction(places)})?|{_bare_fraction(places)}"


_CONVERSIONS: dict[re.Pattern[str], Callable[..., str]] = {
    _pattern(r"\d*\.?\d*$"): _any_decimal,
    _pattern(r"\d*\.?\d{0,<p>}0*$"): _with_places,
    _pattern(r"(?:\d{0,<d>}|(?=[\d.]{1,<m>}0*$)\d*\.\d*0*$)"): _with_digits,
    _pattern(r"(?:\d{0,<i>}|(?=[\d.]{1,<m>}0*$)\d{0,<i>}\.\d{0,<p>}0*$)"): _with_digits_and_places,
}


def without_look_ahead(pattern: str) -> str:
    """Return a pattern of Pydantic's decimals without look-ahead; any other pattern unchanged."""
    for known, convert in _CONVERSIONS.items():
        if match := known.fullmatch(pattern):
            limits = {name: int(limit) for name, limit in match.groupdict().items()}
            return f"^[+-]?({convert(**limits)})$" if max(limits.values(), default=0) <= _MAX_DIGITS else pattern
    return pattern


def _integer(digits: int) -> str:
    return f"0*[0-9]{{1,{digits}}}" if digits else "0+"


def _fraction(places: int) -> str:
    return rf"\.[0-9]{{0,{places}}}0*"


def _bare_fraction(places: int) -> str:
    return rf"\.([0-9]{{1,{places}}}0*|0+)" if places else r"\.0+"
