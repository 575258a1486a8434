"""The checker of histories: it finds an order where one exists, and none otherwise."""

import pytest

from tests.linearizability import Call, order_of


def register(state, call):
    """One value that is written and read."""
    if call.name == "write":
        return [call.argument]
    return [state] if call.answer in (state, None) else []


def write(began, ended, value, answer="ok"):
    return Call(began, ended, "write", value, answer)


def read(began, ended, value):
    return Call(began, ended, "read", None, value)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [write(0, 1, 1), read(2, 3, 1)],
        [write(0, 9, 1), read(1, 2, 0), read(3, 4, 1), read(5, 6, 1)],
        [write(0, 5, 1), write(1, 6, 2), read(2, 7, 1), read(8, 9, 2)],
        [write(0, 5, 1, answer=None), read(6, 7, 0)],
        [write(0, 5, 1, answer=None), read(1, 2, 0), read(3, 4, 1), read(6, 7, 1)],
    ],
)
def test_a_history_with_an_order_has_one(calls):
    order = order_of(calls, 0, register)

    assert order is not None
    assert set(order) == set(calls)


@pytest.mark.parametrize(
    "calls",
    [
        [write(0, 1, 1), read(2, 3, 0)],
        [write(0, 9, 1), read(1, 2, 1), read(3, 4, 0)],
        [write(0, 1, 1), write(2, 3, 2), read(4, 5, 1)],
        [write(0, 9, 1), write(1, 8, 2), read(10, 11, 1), read(12, 13, 2)],
        [write(0, 5, 1, answer=None), read(6, 7, 1), read(8, 9, 0)],
        [write(0, 5, 1, answer=None), read(6, 7, 0), read(8, 9, 1)],
    ],
)
def test_a_history_without_an_order_has_none(calls):
    assert order_of(calls, 0, register) is None


def test_a_history_of_many_calls_at_once_is_searched_in_no_time():
    calls = [write(number, 100 + number, number % 3) for number in range(14)] + [read(200, 201, 7)]

    assert order_of(calls, 0, register) is None
