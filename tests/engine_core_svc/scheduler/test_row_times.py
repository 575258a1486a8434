"""Estimates of the time of a step and of a token, and the probes that measure steps without further rows."""

import pytest

from tetrad.engine_core_svc.scheduler.row_times import Probe, RowTimes


def times(*steps):
    learned = RowTimes()
    for num_tokens, seconds in steps:
        if num_tokens:
            learned.observe_further(num_tokens, seconds)
        else:
            learned.observe_base(seconds)
    return learned.base_s, learned.token_s


def test_steps_without_further_rows_tell_what_a_step_takes():
    assert times((0, 4.0)) == (4.0, 0.0)
    assert times((0, 4.0), (0, 2.1)) == (pytest.approx((0.9 * 4 + 2.1) / 1.9), 0.0)


def test_further_rows_cost_what_steps_take_longer():
    assert times((0, 4.0), (10, 24.0)) == (4.0, 2.0)


def test_results_that_come_in_pairs_teach_the_same_as_those_that_come_evenly():
    _, evenly = times((0, 4.0), *[(10, 9.0)] * 40)
    _, in_pairs = times((0, 4.0), *[(10, 17.0), (10, 1.0)] * 20)

    assert in_pairs == pytest.approx(evenly, rel=0.2)


def test_further_rows_cost_something_even_in_steps_that_took_no_longer():
    assert times((0, 4.0), (10, 4.0)) == (4.0, pytest.approx(0.04))


def test_a_step_that_something_disturbed_counts_as_four():
    assert times((0, 4.0), (0, 4000.0)) == (pytest.approx((0.9 * 4 + 16) / 1.9), 0.0)
    assert times((0, 4.0), (10, 24.0), (10, 2400.0)) == (4.0, pytest.approx((0.97 * 24 + 96 - 1.97 * 4) / 19.7))


def test_nothing_is_learned_of_further_rows_before_it_is_known_what_a_step_takes():
    assert times((10, 24.0)) == (0.0, 0.0)


def test_the_mean_number_of_tokens_is_that_of_steps_with_further_rows():
    learned = RowTimes()
    learned.observe_base(1.0)
    for num_tokens in (10, 20):
        learned.observe_further(num_tokens, 2.0)

    assert learned.mean_tokens == pytest.approx((0.97 * 10 + 20) / 1.97)


def steps_of_probe(probe, *, is_measured=True, at_most=1000):
    """Return how many steps the probe takes, each of one second."""
    num_steps = 0
    while num_steps < at_most and probe.takes_next_step():
        probe.note_base(1.0, is_measured=is_measured)
        num_steps += 1
    return num_steps


def test_a_probe_takes_four_measured_steps():
    assert steps_of_probe(Probe()) == 4


def test_the_next_probe_is_due_after_sixteen_times_the_duration_of_the_last():
    probe = Probe()
    steps_of_probe(probe)
    probe.note_further(63.0)
    assert not probe.takes_next_step()

    probe.note_further(1.0)

    assert steps_of_probe(probe) == 4


def test_a_probe_that_measures_nothing_ends():
    """Otherwise calls with many sequences would have no further rows for as long as each step has a long prompt."""
    probe = Probe()
    assert steps_of_probe(probe, is_measured=False) == 64

    assert not probe.takes_next_step()
