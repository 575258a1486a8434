"""Struct values: those of JSON come back, and numbers that JSON has no form for are no errors."""

import math

import pytest
from google.protobuf.struct_pb2 import Struct, Value

from tetrad.services.rpc.struct_values import decode_struct


def test_values_of_json_come_back():
    values = {"text": "a", "flag": True, "none": None, "list": [1, 0.5, [], {}], "deep": {"a": {"b": -3}}}
    message = Struct()
    message.update(values)

    assert decode_struct(message) == values


@pytest.mark.parametrize(
    ("number", "expected"), [(7.0, 7), (-0.0, 0), (0.5, 0.5), (2.0**62, 2**62), (2.0**63, 2.0**63), (1e300, 1e300)]
)
def test_a_number_of_64_bits_without_a_fraction_is_an_int(number, expected):
    [found] = decode_struct(Struct(fields={"a": Value(number_value=number)})).values()

    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_no_form_for_stays_as_it_is(number):
    [found] = decode_struct(Struct(fields={"a": Value(number_value=number)})).values()

    assert repr(found) == repr(number)


def test_a_value_without_a_kind_is_none():
    assert decode_struct(Struct(fields={"a": Value()})) == {"a": None}
