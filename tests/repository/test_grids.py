"""`make test` runs a short version of every grid whose other cases are left to `make exhaustive-test`."""

from dataclasses import dataclass

import pytest

from tests.conftest import GRIDS, Grids


@dataclass(frozen=True)
class Item:
    """A collected test."""

    nodeid: str
    mark: pytest.Mark | None = None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark


LONG, LONG_OF_SHORT = pytest.mark.exhaustive.mark, pytest.mark.exhaustive(short="test_short").mark


def test_every_grid_has_a_short_version(pytestconfig):
    """Of all that was collected with this test: in `make test`, that is every test."""
    assert pytestconfig.stash[GRIDS].without_short_version() == set()


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([Item("a.py::test_grid[1]"), Item("a.py::test_grid[2]", LONG)], id="another case"),
        pytest.param([Item("a.py::test_short"), Item("a.py::test_long", LONG_OF_SHORT)], id="the test that its mark names"),
    ],
)
def test_a_case_that_make_test_runs_is_a_short_version(items):
    assert Grids(items).without_short_version() == set()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="nothing else"),
        pytest.param([Item("a.py::test_other")], id="another test of the file"),
        pytest.param([Item("b.py::test_short")], id="a test of that name elsewhere"),
        pytest.param([Item("a.py::test_short", LONG)], id="a test that is exhaustive itself"),
    ],
)
def test_a_grid_without_a_short_version_is_named(others):
    grid = Grids([*others, Item("a.py::test_long[1]", LONG_OF_SHORT)])

    assert "a.py::test_long" in grid.without_short_version()
