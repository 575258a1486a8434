"""Formats of text that become patterns: a pattern allows the same texts as Pydantic."""

import base64
import json
import uuid
from random import Random

import pytest
from pydantic import UUID4, Base64Bytes, Base64UrlBytes, IPvAnyAddress, TypeAdapter

from tetrad.engine_core_svc.structured_output.text_formats import with_known_format


@pytest.mark.parametrize("kind", [UUID4, Base64Bytes, Base64UrlBytes, IPvAnyAddress])
def test_whatever_is_sampled_is_valid(open_writer, kind):
    adapter = TypeAdapter(kind)
    schema = {**adapter.json_schema(), "maxLength": 40}

    for seed in range(8):
        text = open_writer("json_schema", json.dumps(schema)).run(Random(seed))

        adapter.validate_python(json.loads(text))


def test_every_value_of_the_format_is_allowed(open_writer):
    draw = Random(0)

    for size in range(7):
        text = base64.b64encode(draw.randbytes(size)).decode()
        assert open_writer("json_schema", json.dumps({"type": "string", "format": "base64"})).takes(json.dumps(text))
    value = str(uuid.UUID(bytes=draw.randbytes(16), version=4))
    assert open_writer("json_schema", json.dumps({"type": "string", "format": "uuid4"})).takes(json.dumps(value))


@pytest.mark.parametrize("schema", [{}, {"format": 5}, {"format": "color"}])
def test_other_formats_stay(schema):
    assert with_known_format(schema) == schema


@pytest.mark.parametrize("name", ["nanoid", "starts_with", "uuid1"])
def test_a_pattern_decides_beside_a_format_that_only_its_author_knows(name):
    assert with_known_format({"format": name, "pattern": "^a"}) == {"pattern": "^a"}


def test_both_a_known_format_and_its_pattern_decide():
    schema = {"format": "date", "pattern": "^2"}

    assert with_known_format(schema) == schema
