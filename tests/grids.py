"""Grids: cases of which `make test` runs a part, and `make exhaustive-test` the rest."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest


def grid(cases: Iterable[object], is_short: Callable[..., bool]) -> list[object]:
    """Return cases for `pytest.mark.parametrize`: all but those of the short version are marked as exhaustive.

    Args:
        cases: values, or tuples of several.
        is_short: whether `make test` runs a case, given its values.
    """
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if is_short(*values) else pytest.param(*values, marks=pytest.mark.exhaustive))
    return marked


def pairs(some: Sequence[object], others: Sequence[object]) -> list[object]:
    """Return all pairs as cases: `make test` runs each of `some` with one of the `others`, which are no more, in turn."""
    numbered = product(enumerate(some), enumerate(others))
    return [
        (one, other) if row % len(others) == column else pytest.param(one, other, marks=pytest.mark.exhaustive)
        for (row, one), (column, other) in numbered
    ]
