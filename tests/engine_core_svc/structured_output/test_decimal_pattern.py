"""Pydantic's patterns of decimals without look-ahead match the same texts, up to their ends."""

import itertools
import re

import pytest

from tetrad.engine_core_svc.structured_output.decimal_pattern import without_look_ahead

START = r"^(?!^[-+.]*$)[+-]?0*"
TEXTS = ["".join(text) for length in range(7) for text in itertools.product("01.-", repeat=length)]


def written(digits, places):
    """Return the pattern that Pydantic 2.12 writes for these limits; None: no limit."""
    if digits is None:
        return START + (r"\d*\.?\d*$" if places is None else rf"\d*\.?\d{{0,{places}}}0*$")
    if places is None:
        return rf"{START}(?:\d{{0,{digits}}}|(?=[\d.]{{1,{digits + 1}}}0*$)\d*\.\d*0*$)"
    integers = max(0, digits - places)
    return rf"{START}(?:\d{{0,{integers}}}|(?=[\d.]{{1,{digits + 1}}}0*$)\d{{0,{integers}}}\.\d{{0,{places}}}0*$)"


@pytest.mark.parametrize("digits", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("places", [None, 0, 1, 2, 3])
def test_the_same_texts_match(digits, places):
    pattern = written(digits, places)
    closed = START + pattern.removeprefix(START).replace("}|", "}$|")  # the end that Pydantic leaves open

    converted = without_look_ahead(pattern)

    assert "(?" not in converted
    assert [bool(re.search(converted, text)) for text in TEXTS] == [bool(re.search(closed, text)) for text in TEXTS]


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$",
        "^(?=a)b",
        written(None, 129),
        written(3, 1).replace("{0,2}|", "{0,4}|"),
        START + "x",
    ],
)
def test_other_patterns_stay(pattern):
    assert without_look_ahead(pattern) == pattern
