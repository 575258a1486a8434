"""The throttle of large calls: the rows that a step gives them, and the steps from which it learns their time."""

import pytest

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.fan_out_throttle import NO_SHARE, MeasuringFanOutThrottle, StepShare


def row(call, key=1):
    return Request(key, f"r{key}", [1], 1, 9, call=(1, call))


def calls_of(*sizes):
    """Return calls with so many sequences each."""
    calls = CallCounts()
    for number, size in enumerate(sizes):
        for key in range(size):
            calls.add(row(number, 100 * number + key))
    return calls


class Steps:
    """A throttle and the steps that it plans, one after the other."""

    def __init__(self, max_slowdown=1.5):
        self.now, self.num_steps = 1000.0, 0
        self.throttle = MeasuringFanOutThrottle(max_slowdown, lambda: self.now)

    def plan(self, calls, num_further_tokens=0, num_prompt_tokens=0):
        """Plan a step that takes so many tokens of further rows from its share; return its number."""
        share = self.throttle.share(calls)
        share.num_further_tokens = num_further_tokens
        self.num_steps += 1
        self.throttle.note_planned(self.num_steps, share, num_prompt_tokens)
        return self.num_steps

    def run(self, calls, seconds, num_further_tokens=0, num_prompt_tokens=0):
        """Plan a step and return its result after so many seconds."""
        step = self.plan(calls, num_further_tokens, num_prompt_tokens)
        self.now += seconds
        self.throttle.note_returned(step)

    @property
    def learned(self):
        times = self.throttle._times
        return times.base_s, times.token_s


@pytest.fixture
def steps():
    """Return steps whose first four measured what a step without further rows takes: one second."""
    steps = Steps()
    for _ in range(4):
        steps.run(calls_of(1, 9), 1.0)
    return steps


def num_further(share, call=1):
    """Return how many further rows of one token a share gives a call."""
    num_rows = 0
    while share.has_room(row(call)):
        share.spend(row(call), 1)
        num_rows += 1
    return share.num_further_tokens


# --- the rows of a step --------------------------------------------------------------------------------------------------


def test_the_first_rows_of_every_call_are_free():
    share = StepShare(num_first=2, most=2, max_further_tokens=0)
    for call in (1, 2):
        for _ in range(2):
            assert share.has_room(row(call))
            share.spend(row(call), 7)

    assert not share.has_room(row(1))
    assert share.num_further_tokens == 0


def test_further_rows_share_their_tokens():
    share = StepShare(num_first=1, most=9, max_further_tokens=6)
    for call in (1, 1, 2, 2):
        assert share.has_room(row(call))
        share.spend(row(call), 3)

    assert share.num_further_tokens == 6
    assert not share.has_room(row(1))
    assert share.has_room(row(3)), "the first row of another call"


def test_no_call_has_more_rows_than_its_share():
    share = StepShare(num_first=1, most=3, max_further_tokens=100)

    assert num_further(share) == 2


def test_every_call_has_as_many_rows_as_the_smallest():
    share = Steps().throttle.share(calls_of(3, 3))

    assert (share.has_room(row(0)), num_further(share)) == (True, 0)
    assert not share.has_room(row(1))


# --- how many further rows -----------------------------------------------------------------------------------------------


def test_a_probe_measures_steps_without_further_rows_first():
    steps = Steps()

    assert [num_further(steps.throttle.share(calls_of(1, 99))) for _ in range(3)] == [0, 0, 0]


def test_sixteen_further_tokens_are_computed_until_their_time_is_known(steps):
    assert num_further(steps.throttle.share(calls_of(1, 99))) == 16


def test_further_rows_get_the_time_by_which_a_step_may_be_longer(steps):
    """Of half a second each row takes 40 ms."""
    steps.run(calls_of(1, 99), 1.4, num_further_tokens=10)

    assert num_further(steps.throttle.share(calls_of(1, 99))) == 12


def test_eight_further_tokens_are_computed_even_where_they_take_too_long(steps):
    steps.run(calls_of(1, 99), 3.0, num_further_tokens=10)

    assert num_further(steps.throttle.share(calls_of(1, 99))) == 8


def test_further_tokens_become_four_times_as_many_at_most(steps):
    steps.run(calls_of(1, 99), 1.0, num_further_tokens=10)

    assert num_further(steps.throttle.share(calls_of(1, 99))) == 40


def test_large_calls_divide_further_rows_evenly(steps):
    share = steps.throttle.share(calls_of(1, 99, 99))

    assert [num_further(share, 1), num_further(share, 2)] == [8, 16]


def test_a_large_call_is_limited_for_a_second_after_the_last_other_one():
    steps = Steps()
    steps.throttle.share(calls_of(1, 9))

    steps.now += 0.9
    share = steps.throttle.share(calls_of(9))
    assert share is not NO_SHARE
    share.spend(row(1), 1)
    assert not share.has_room(row(1)), "its first row is the only one while the others are probed"
    steps.now += 0.2
    assert steps.throttle.share(calls_of(9)) is NO_SHARE


def test_no_call_at_all_limits_nothing():
    steps = Steps()
    steps.throttle.share(calls_of(1, 9))

    assert steps.throttle.share(calls_of()) is NO_SHARE


# --- what is learned -----------------------------------------------------------------------------------------------------


def test_a_step_is_measured_from_the_result_before_it():
    steps = Steps()
    plans = [steps.plan(calls_of(1, 9)) for _ in range(2)]
    for step in plans:
        steps.now += 1.0
        steps.throttle.note_returned(step)

    assert steps.learned == (1.0, 0.0)


def test_a_step_is_measured_from_its_plan_if_no_step_ran_before():
    steps = Steps()
    steps.run(calls_of(1, 9), 1.0)
    steps.now += 50.0
    steps.run(calls_of(1, 9), 1.0)

    assert steps.learned == (1.0, 0.0)


@pytest.mark.parametrize(("num_prompt_tokens", "base_s"), [(64, 1.0), (65, 0.0)])
def test_a_step_with_a_long_prompt_teaches_nothing(num_prompt_tokens, base_s):
    steps = Steps()
    steps.run(calls_of(1, 9), 1.0, num_prompt_tokens=num_prompt_tokens)

    assert steps.learned == (base_s, 0.0)


def test_a_step_without_limits_teaches_nothing():
    steps = Steps()
    steps.throttle.note_planned(1, NO_SHARE, 0)
    steps.now += 1.0
    steps.throttle.note_returned(1)

    assert steps.learned == (0.0, 0.0)


def test_further_rows_are_learned_by_their_tokens(steps):
    steps.run(calls_of(1, 99), 3.0, num_further_tokens=10)

    assert steps.learned == (1.0, pytest.approx(0.2))


@pytest.mark.parametrize(("pause_s", "base_s"), [(0.01, 1.0), (0.03, pytest.approx(0.76, abs=0.01))])
def test_services_have_20_ms_for_the_outputs_of_further_rows_before_steps_are_measured_again(steps, pause_s, base_s):
    steps.run(calls_of(1, 99), 3.0, num_further_tokens=10)

    steps.run(calls_of(1, 9), pause_s)

    assert steps.learned[0] == base_s


def test_the_next_probe_comes_after_sixteen_times_the_time_of_the_last(steps):
    found = []
    for _ in range(25):
        share = steps.throttle.share(calls_of(1, 99))
        found.append(num_further(share) > 0)
        steps.num_steps += 1
        steps.throttle.note_planned(steps.num_steps, share, 0)
        steps.now += 4.0 if found[-1] else 1.0
        steps.throttle.note_returned(steps.num_steps)

    assert found == [True] * 16 + [False] * 4 + [True] * 5


def test_steps_of_a_lost_worker_teach_nothing():
    steps = Steps()
    step = steps.plan(calls_of(1, 9))
    steps.throttle.forget_steps()
    steps.now += 1.0
    steps.throttle.note_returned(step)

    assert steps.learned == (0.0, 0.0)
