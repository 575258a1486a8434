"""PlanTiming: the next step is planned at the latest time that still keeps the worker busy."""

import asyncio

import pytest

from tetrad.engine_core_svc.engine.plan_timing import PlanTiming


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
def timing(clock):
    made = PlanTiming(wake=lambda: None, clock=clock)
    yield made
    made.rest()


async def test_a_worker_without_a_step_gets_one_at_once(timing):
    timing.note_result(0.1)

    assert timing.is_due(0)


async def test_behind_a_first_step_the_next_is_planned_at_once_as_nothing_is_known(timing):
    timing.note_dispatched(1)

    assert timing.is_due(1)


@pytest.mark.parametrize(
    ("step_ms", "held_ms"),
    [
        (100, 75),  # a quarter before the end
        (20, 14),  # 6 ms before the end
        (7, 0),  # not worth it
    ],
)
async def test_a_plan_is_held_until_the_step_before_it_is_about_to_end(timing, clock, step_ms, held_ms):
    timing.note_result(step_ms / 1000)

    held = []
    for ms in range(step_ms):
        if not timing.is_due(1):
            held.append(ms)
        clock.now_s += 0.001

    # The last two milliseconds of the wait are not worth a timer.
    assert len(held) == pytest.approx(max(held_ms - 2, 0), abs=1)
    assert held == list(range(len(held)))


async def test_the_shortest_of_the_last_steps_counts_as_prompts_make_them_longer(timing, clock):
    for step_s in (0.5, 0.04, 0.5):
        timing.note_result(step_s)
    clock.now_s += 0.031

    assert timing.is_due(1)


async def test_what_was_short_long_ago_is_forgotten(timing, clock):
    timing.note_result(0.01)
    for _ in range(8):
        timing.note_result(0.1)
    clock.now_s += 0.031

    assert not timing.is_due(1)


async def test_a_step_that_is_alone_begins_when_it_is_sent(timing, clock):
    timing.note_result(0.1)
    clock.now_s += 60
    timing.note_dispatched(1)

    assert not timing.is_due(1)


async def test_whoever_is_held_is_woken_once_it_is_time():
    woken = asyncio.Event()
    timing = PlanTiming(wake=woken.set)
    timing.note_result(0.04)

    assert not timing.is_due(1)
    assert not timing.is_due(1)
    async with asyncio.timeout(5):
        await woken.wait()

    assert timing.is_due(1)


async def test_who_rests_wakes_nobody():
    calls = []
    timing = PlanTiming(wake=lambda: calls.append(1))
    timing.note_result(0.02)
    assert not timing.is_due(1)

    timing.rest()
    await asyncio.sleep(0.05)

    assert calls == []


@pytest.fixture
def cpu_lookahead(timing):
    """One whose worker computes on the cores of its machine, in steps of a millisecond, and has one that lets requests in."""
    timing.shares_cores = True
    timing.note_result(0.001)
    timing.note_dispatched(1, lets_in=True)
    return timing


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
    timing = PlanTiming(wake=woken.set, clock=clock)
    timing.shares_cores = True
    timing.note_dispatched(1, lets_in=True)
    timing.note_result(0.001)

    assert not timing.is_due(0)
    async with asyncio.timeout(5):
        await woken.wait()


async def test_behind_a_short_step_that_lets_nobody_in_the_next_is_planned_at_once(cpu_lookahead):
    cpu_lookahead.note_result(0.001)
    cpu_lookahead.note_dispatched(1, lets_in=False)

    assert cpu_lookahead.is_due(1)


async def test_first_tokens_wait_for_no_core_where_the_worker_has_a_device(cpu_lookahead):
    cpu_lookahead.shares_cores = False

    assert cpu_lookahead.is_due(1)


async def test_a_worker_whose_steps_take_longer_than_the_way_of_their_tokens_does_not_stand_still(timing):
    timing.shares_cores = True
    timing.note_result(0.004)
    timing.note_dispatched(1, lets_in=True)

    assert timing.is_due(1)
    timing.note_result(0.004)

    assert timing.is_due(0)


async def test_a_third_step_is_planned_while_steps_are_short(timing, clock):
    timing.note_result(0.002)
    assert timing.is_due(2)

    for _ in range(8):
        timing.note_result(0.004)
    clock.now_s += 60

    assert timing.is_due(1)
    assert not timing.is_due(2)


async def test_nothing_is_known_of_the_first_steps_so_two_are_planned(timing):
    assert timing.is_due(1)
    assert not timing.is_due(2)


async def test_a_third_step_leaves_the_cores_to_the_worker_that_computes_on_them(timing):
    timing.shares_cores = True
    timing.note_result(0.002)

    assert timing.is_due(1)
    assert not timing.is_due(2)


async def test_long_steps_in_flight_are_as_many_as_chosen(clock):
    timing = PlanTiming(wake=lambda: None, clock=clock, max_long=5)
    timing.note_result(0.05)
    clock.now_s += 1

    assert timing.is_due(4)
    assert not timing.is_due(5)
