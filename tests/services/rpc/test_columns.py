"""Columns: little-endian bytes on any machine; malformed ones are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_f32, pack_u32, split_rows, unpack_f32, unpack_u32


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_u32_columns_round_trip(values):
    assert unpack_u32(pack_u32(values)) == values


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_f32_columns_round_trip(values):
    assert unpack_f32(pack_f32(values)) == values


def test_the_bytes_are_little_endian():
    assert pack_u32([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


def test_infinity_is_a_value():
    assert unpack_f32(pack_f32([-math.inf])) == [-math.inf]


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_number_that_does_not_fit_is_an_error(value):
    with pytest.raises(OverflowError):
        pack_u32([value])


@pytest.mark.parametrize("unpack", [unpack_u32, unpack_f32])
def test_a_column_of_half_a_number_is_refused(unpack):
    with pytest.raises(InvalidRequest, match="5 bytes"):
        unpack(b"12345")


def test_rows_are_cut_by_their_lengths():
    assert split_rows([1, 2, 3, 4], [1, 0, 3]) == [[1], [], [2, 3, 4]]


@pytest.mark.parametrize("counts", [[1], [2, 3]])
def test_lengths_that_do_not_add_up_are_refused(counts):
    with pytest.raises(InvalidRequest, match="Columns disagree"):
        split_rows([1, 2, 3, 4], counts)
