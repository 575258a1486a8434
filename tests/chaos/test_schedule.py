"""The schedule of faults is a function of its seed, reaches all targets, and separates faults that must not overlap."""

from itertools import pairwise

import pytest

from tests.chaos.faults import _STRIKES
from tests.chaos.kinds import ALL, BY_NAME, named
from tests.chaos.schedule import Targets, deck

TARGETS = Targets(services=["worker", "frontend"], drained=["worker"], links=["a>b"], tcp_links=["a>b"])


def test_a_schedule_is_a_function_of_its_seed_and_reaches_everything():
    cards = deck(ALL, TARGETS, mean_pause_s=1.0)

    faults = cards.deal(7, 5000)

    assert faults == cards.deal(7, 5000) != cards.deal(8, 5000)
    assert {(fault.kind, fault.target) for fault in faults} == set(cards.cards)
    assert {fault.kind for fault in faults} == {kind.name for kind in ALL}
    assert all(fault.at_s < 5000 for fault in faults)


def test_nothing_else_strikes_while_the_whole_stack_stands_still():
    faults = deck(ALL, TARGETS, mean_pause_s=1.0).deal(7, 2000)

    alone = [fault for fault in faults if fault.kind == "freeze-stack"]
    assert alone
    for still in alone:
        others = [fault for fault in faults if fault is not still]
        assert not [fault for fault in others if fault.at_s <= still.ends_s and fault.ends_s >= still.at_s]


def test_long_faults_follow_each_other_while_short_ones_strike_at_any_time():
    faults = deck(ALL, TARGETS, mean_pause_s=1.0).deal(7, 2000)

    longs = [fault for fault in faults if BY_NAME[fault.kind].is_long]
    assert all(earlier.ends_s < later.at_s for earlier, later in pairwise(longs))
    shorts = [fault for fault in faults if not BY_NAME[fault.kind].is_long]
    assert any(long.at_s < short.at_s < long.ends_s for long in longs for short in shorts)


def test_every_kind_strikes_within_twenty_minutes():
    faults = deck(ALL, TARGETS, mean_pause_s=3.0).deal(7, 1200)

    assert {fault.kind for fault in faults} == {kind.name for kind in ALL}


def test_long_faults_alone_make_a_deck():
    faults = deck(named(["freeze-long"]), TARGETS, mean_pause_s=1.0).deal(7, 1000)

    assert len(faults) > 5


def test_a_deck_has_the_kinds_that_were_named():
    cards = deck(named(["cut", "kill"]), TARGETS, mean_pause_s=1.0).cards

    assert set(cards) == {("cut", "a>b"), ("kill", "worker"), ("kill", "frontend")}


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="no kind of fault 'nap'; there are kill, freeze"):
        named(["nap"])


def test_every_kind_can_be_done():
    assert set(_STRIKES) == {kind.name for kind in ALL}
