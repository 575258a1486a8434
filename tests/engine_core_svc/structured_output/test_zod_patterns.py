"""Zod's patterns without look-ahead match the same texts."""

import itertools
import re

import pytest

from tetrad.engine_core_svc.structured_output.zod_patterns import without_zods_look_ahead

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
LOCALS = ["".join(text) for length in range(6) for text in itertools.product("a.'+", repeat=length)]
EMAILS = [f"{local}@{domain}" for local in LOCALS for domain in ("b.co", "b..co", "-b.co", "b.c", "b.c-d.com")]
STEPS = ("P", "T", "1Y", "2M", "3D", "4H", "5.5S", "W", "6")
DURATIONS = ["".join(text) for length in range(6) for text in itertools.product(STEPS, repeat=length)]


@pytest.mark.parametrize(("pattern", "texts"), [(EMAIL, EMAILS), (DURATION, DURATIONS)])
def test_the_same_texts_match(pattern, texts):
    converted = without_zods_look_ahead(pattern)

    assert not re.search(r"\(\?[=!]", converted)
    found = [bool(re.search(converted, text)) for text in texts]
    assert found == [bool(re.search(pattern, text)) for text in texts]
    assert any(found) and not all(found)


def test_other_patterns_stay_as_they_are():
    assert without_zods_look_ahead("^(?=a)b") == "^(?=a)b"
