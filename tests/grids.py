"""Grids: cases of which `make test` runs a part, and `make exhaustive-test` the rest."""

from collections.abc import Callable, Iterable

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
