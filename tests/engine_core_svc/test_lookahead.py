"""Lookahead: the next step is planned as late as the worker never waits for it."""

import asyncio

import pytest

from tetrad.engine_core_svc.engine.plan_timing import Lookahead


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lookahead(clock):
    made = Lookahead(wake=lambda: None, clock=clock)
    yield made
    made.rest()


async def test_a_worker_without_a_step_gets_one_at_once(lookahead):
    lookahead.note_result(0.1)

    assert lookahead.is_due(0)


async def test_behind_a_first_step_the_next_is_planned_at_once_as_nothing_is_known(lookahead):
    lookahead.note_dispatched(1)

    assert lookahead.is_due(1)


@pytest.mark.parametrize(
    ("step_ms", "held_ms"),
    [
        (100, 75),  # a quarter before the end
        (20, 14),  # 6 ms before the end
        (7, 0),  # not worth it
    ],
)
async def test_a_plan_is_held_until_the_step_before_it_is_about_to_end(lookahead, clock, step_ms, held_ms):
    lookahead.note_result(step_ms / 1000)

    held = []
    for ms in range(step_ms):
        if not lookahead.is_due(1):
            held.append(ms)
        clock.now_s += 0.001

    # The last two milliseconds of the wait are not worth a timer.
    assert len(held) == pytest.approx(max(held_ms - 2, 0), abs=1)
    assert held == list(range(len(held)))


async def test_the_shortest_of_the_last_steps_counts_as_prompts_make_them_longer(lookahead, clock):
    for step_s in (0.5, 0.04, 0.5):
        lookahead.note_result(step_s)
    clock.now_s += 0.031

    assert lookahead.is_due(1)


async def test_what_was_short_long_ago_is_forgotten(lookahead, clock):
    lookahead.note_result(0.01)
    for _ in range(8):
        lookahead.note_result(0.1)
    clock.now_s += 0.031

    assert not lookahead.is_due(1)


async def test_a_step_that_is_alone_begins_when_it_is_sent(lookahead, clock):
    lookahead.note_result(0.1)
    clock.now_s += 60
    lookahead.note_dispatched(1)

    assert not lookahead.is_due(1)


async def test_whoever_is_held_is_woken_once_it_is_time():
    woken = asyncio.Event()
    lookahead = Lookahead(wake=woken.set)
    lookahead.note_result(0.04)

    assert not lookahead.is_due(1)
    assert not lookahead.is_due(1)
    async with asyncio.timeout(5):
        await woken.wait()

    assert lookahead.is_due(1)


async def test_who_rests_wakes_nobody():
    calls = []
    lookahead = Lookahead(wake=lambda: calls.append(1))
    lookahead.note_result(0.02)
    assert not lookahead.is_due(1)

    lookahead.rest()
    await asyncio.sleep(0.05)

    assert calls == []


@pytest.fixture
def cpu_lookahead(lookahead):
    """One whose worker computes on the cores of its machine, in steps of a millisecond, and has one that lets requests in."""
    lookahead.shares_cores = True
    lookahead.note_result(0.001)
    lookahead.note_dispatched(1, lets_in=True)
    return lookahead


async def test_behind_a_short_step_that_lets_requests_in_nothing_is_planned(cpu_lookahead, clock):
    clock.now_s += 60

    assert not cpu_lookahead.is_due(1)


async def test_first_tokens_go_ahead_of_the_next_step(cpu_lookahead, clock):
    cpu_lookahead.note_result(0.002)

    assert not cpu_lookahead.is_due(0)
    clock.now_s += 0.0011

    assert cpu_lookahead.is_due(0)


async def test_whoever_lets_first_tokens_go_ahead_is_woken_behind_them(clock):
    woken = asyncio.Event()
    lookahead = Lookahead(wake=woken.set, clock=clock)
    lookahead.shares_cores = True
    lookahead.note_dispatched(1, lets_in=True)
    lookahead.note_result(0.001)

    assert not lookahead.is_due(0)
    async with asyncio.timeout(5):
        await woken.wait()


async def test_behind_a_short_step_that_lets_nobody_in_the_next_is_planned_at_once(cpu_lookahead):
    cpu_lookahead.note_result(0.001)
    cpu_lookahead.note_dispatched(1, lets_in=False)

    assert cpu_lookahead.is_due(1)


async def test_first_tokens_wait_for_no_core_where_the_worker_has_a_device(cpu_lookahead):
    cpu_lookahead.shares_cores = False

    assert cpu_lookahead.is_due(1)


async def test_a_worker_whose_steps_take_longer_than_the_way_of_their_tokens_does_not_stand_still(lookahead):
    lookahead.shares_cores = True
    lookahead.note_result(0.004)
    lookahead.note_dispatched(1, lets_in=True)

    assert lookahead.is_due(1)
    lookahead.note_result(0.004)

    assert lookahead.is_due(0)
