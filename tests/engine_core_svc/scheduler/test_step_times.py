"""Estimates from measured steps. Seconds are round numbers: a decode step takes 8, a token of a prompt 2."""

import pytest

from tetrad.engine_core_svc.scheduler.step_times import StepTimes


def times(*steps):
    """Return what steps of (decodes, prompt tokens, seconds) taught."""
    learned = StepTimes()
    for step in steps:
        learned.observe(*step)
    return learned.decode_s, learned.token_s


def test_nothing_is_known_at_first():
    assert times() == (0.0, 0.0)


@pytest.mark.parametrize("num_prompt_tokens", [0, 1])
def test_decodes_alone_or_beside_one_token_tell_what_decodes_take(num_prompt_tokens):
    assert times((4, num_prompt_tokens, 8.0)) == (8.0, 0.0)


def test_the_newest_step_moves_what_is_known_by_a_part():
    assert times((4, 0, 10.0), (4, 0, 5.0)) == (pytest.approx(8.5), 0.0)
    assert times((0, 100, 1000.0), (0, 100, 500.0)) == (0.0, pytest.approx(8.5))
    assert times((4, 0, 8.0), (4, 10, 108.0), (4, 10, 58.0)) == (8.0, pytest.approx(8.5))


def test_a_step_that_something_disturbed_counts_as_a_quarter_longer():
    assert times((4, 0, 8.0), (4, 0, 800.0)) == (pytest.approx(8.0 + 0.3 * 2.0), 0.0)


def test_prompts_beside_decodes_cost_what_the_step_takes_longer():
    assert times((4, 0, 8.0), (4, 2, 12.0)) == (8.0, 2.0)
    assert times((4, 0, 8.0), (4, 10, 28.0)) == (8.0, 2.0)


def test_prompts_cost_something_even_in_a_step_that_took_no_longer():
    assert times((4, 0, 8.0), (4, 10, 8.0)) == (8.0, pytest.approx(0.08))


def test_the_first_step_with_both_tells_decodes_by_what_is_known_of_prompts():
    assert times((0, 100, 200.0), (4, 10, 28.0)) == (8.0, 2.0)


def test_the_first_step_of_all_with_both_is_decodes_for_the_most_part():
    decode_s, token_s = times((4, 10, 8.0))

    assert decode_s == 8.0
    assert token_s == pytest.approx(0.08)


def test_where_prompts_explain_more_than_the_step_took_decodes_still_take_a_tenth():
    assert times((0, 100, 200.0), (4, 10, 10.0))[0] == pytest.approx(1.0)


def test_prompts_alone_tell_what_they_cost_unless_they_are_short():
    assert times((0, 64, 128.0)) == (0.0, 2.0)
    assert times((0, 10, 40.0)) == (0.0, 4.0), "better than nothing"
    assert times((0, 64, 128.0), (0, 63, 63.0)) == (0.0, 2.0)
    assert times((0, 64, 128.0), (0, 64, 64.0)) == (0.0, pytest.approx(1.7))


def test_prompts_alone_teach_nothing_once_they_were_seen_beside_decodes():
    assert times((4, 0, 8.0), (4, 10, 28.0), (0, 100, 100.0)) == (8.0, 2.0)
