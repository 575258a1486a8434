"""The body check refuses bodies that are expensive to parse, and accepts long texts."""

import json

import pytest

from tetrad.frontend.api.http.requests.body import BodyBudget, check_shape
from tetrad.services.errors import InvalidRequest, Overloaded


async def check(body, max_objects=10, max_values=20):
    await check_shape(body, max_objects=max_objects, max_values=max_values)


@pytest.mark.parametrize(
    "text",
    ["{[" * 50_000, ",,," * 50_000, '\\"{' * 20_000, "\\\\" * 20_000 + "{" * 30, '"' * 100 + "[" * 30, "{[,\n" * 30_000],
)
async def test_brackets_and_commas_in_text_do_not_count(text):
    await check(json.dumps({"prompt": text, "more": [1]}).encode())


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"messages": [{"a": ""}] * 11}).encode(),
        json.dumps({"a": 'x"', "b": [[]] * 11}).encode(),
        b'{"a":"\\\\",' + b"[" * 11,
        b"[" * 100,
    ],
)
async def test_objects_and_lists_outside_of_text_count(body):
    with pytest.raises(InvalidRequest, match="more than 10 objects and lists"):
        await check(body)


async def test_values_count():
    with pytest.raises(InvalidRequest, match="more than 20 values"):
        await check(json.dumps({"prompt": [1] * 30}).encode())


@pytest.mark.parametrize("body", [b'"' + b"{" * 100, b'"\\', b'{"' * 8 + b"\\" * 101, b"", b'"' * 99 + b"{" * 11])
async def test_what_is_no_json_is_left_to_the_parser(body):
    try:
        await check(body)
    except InvalidRequest as error:
        assert "objects and lists" in error.message


def test_a_budget_refuses_what_is_too_much_together_and_takes_it_alone():
    budget = BodyBudget(100)
    with budget.open() as large:
        for _ in range(3):
            large.take(50)
        with budget.open() as other, pytest.raises(Overloaded, match="Bodies of 150 bytes are being read; at most 100"):
            other.take(1)

    assert budget.num_bytes == 0
