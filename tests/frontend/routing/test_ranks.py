"""The engine core of a pinned request, while some have not reported their rank."""

from dataclasses import dataclass

import pytest

from tetrad.frontend.routing.ranks import Ranks
from tetrad.services.errors import InvalidRequest, Unavailable


@dataclass
class Engine:
    """As a member of the pool."""

    own_rank: int | None
    is_gone: bool = False


def place_of(engines, rank, ranks=None):
    """Return the place of the engine with a rank."""
    found = (ranks or Ranks()).find(engines, rank)
    return next(place for place, engine in enumerate(engines) if engine is found)


def ranks_after(*own):
    ranks = Ranks()
    ranks.note([Engine(each) for each in own])
    return ranks


def test_different_ranks_count_and_places_where_two_share_one():
    assert [place_of([Engine(1), Engine(0)], rank) for rank in (0, 1)] == [1, 0]
    assert [place_of([Engine(0), Engine(0), Engine(None)], rank) for rank in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize(("before", "then", "place"), [((1, 0), (None, 0), 1), ((0, 0), (None, 0), 0)], ids=["own", "places"])
def test_what_was_found_out_goes_on_to_hold_while_one_is_unknown(before, then, place):
    engines = [Engine(each) for each in then]

    assert place_of(engines, 0, ranks_after(*before)) == place


def test_before_all_are_known_only_what_is_so_either_way_is_found():
    engines = [Engine(0), Engine(None), Engine(1)]

    assert place_of(engines, 0) == 0
    for rank in (1, 2):
        with pytest.raises(Unavailable, match=f"data_parallel_rank {rank} is not there now"):
            place_of(engines, rank)


def test_each_engine_core_has_the_rank_that_finds_it():
    assert Ranks().of([Engine(1), Engine(0)]) == [1, 0]
    assert Ranks().of([Engine(0), Engine(0)]) == [0, 1]
    assert Ranks().of([Engine(0), Engine(None)]) == [0, 1]
    assert Ranks().of([Engine(1), Engine(None)]) == [None, None]


def test_a_rank_that_one_without_an_answer_may_have_is_not_out_of_range():
    with pytest.raises(Unavailable):
        place_of([Engine(0), Engine(None)], 5)
    with pytest.raises(InvalidRequest, match=r"out of range \[0, 2\)"):
        place_of([Engine(0), Engine(None)], 5, ranks_after(0, 0))


def test_nobody_is_no_rank():
    with pytest.raises(InvalidRequest, match=r"out of range \[0, 0\)"):
        place_of([], 0)
