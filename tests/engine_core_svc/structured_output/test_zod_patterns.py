"""Zod's patterns without look-ahead match the same texts."""

import itertools
import json
import re

import pytest

from tetrad.engine_core_svc.structured_output.zod_patterns import with_hostname_lengths, without_zods_look_ahead

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
LABELS = ["a" * length for length in (1, 61, 62, 63, 64)]
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


@pytest.mark.parametrize("end", ["", "."])
@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_host_names_have_the_same_lengths(open_writer, number, end):
    schema = {"type": "string", "format": "hostname", "pattern": HOSTNAME}

    for label in LABELS:
        name = ".".join([label] * number) + end
        is_taken = open_writer("json_schema", json.dumps(schema)).takes(json.dumps(name))
        assert is_taken == bool(re.search(HOSTNAME, name)), name


def test_a_host_name_among_other_alternatives_stays():
    schema = {"pattern": HOSTNAME, "anyOf": [{"minLength": 3}]}

    assert with_hostname_lengths(schema) == schema


def test_emoji_match_zods_pattern(open_writer):
    pattern = r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$"
    writer = open_writer("json_schema", json.dumps({"type": "string", "format": "emoji", "pattern": pattern}))

    assert writer.takes('"😀👍🏽"')
