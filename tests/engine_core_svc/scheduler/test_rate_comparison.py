"""Steps with and without drafts are compared by their rates: which kind goes on, and when the other is tried."""

import pytest

from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison


def kinds(rates, num_steps, *, plain, drafted, num_requests=1):
    """Return which of so many steps were drafted; a kind is (tokens, seconds) of a step."""
    found = []
    for _ in range(num_steps):
        found.append(rates.pays(num_requests))
        num_tokens, seconds = drafted if found[-1] else plain
        rates.note(num_requests, num_tokens, seconds, drafted=found[-1])
    return found


def changes(found):
    """Return the steps at which another kind begins."""
    return [step for step in range(1, len(found)) if found[step] != found[step - 1]]


# --- the faster kind ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drafted", "share"), [((3, 0.02), 0.97), ((3, 0.05), 0.01), ((1, 0.011), 0.02)])
def test_the_faster_kind_of_step_goes_on(drafted, share):
    found = kinds(RateComparison(), 2000, plain=(1, 0.01), drafted=drafted)

    assert sum(found) / len(found) == pytest.approx(share, abs=0.02)


def test_drafts_that_are_just_as_fast_do_not_pay():
    rates = RateComparison()

    assert changes(kinds(rates, 100, plain=(1, 1.0), drafted=(1, 1.0), num_requests=32)) == [8, 16]
    assert changes(kinds(rates, 100, plain=(1, 1.0), drafted=(1, 1.0), num_requests=31)) == [], "nor are they tried beside"


def test_a_kind_that_became_faster_is_found():
    rates = RateComparison()
    kinds(rates, 600, plain=(1, 0.01), drafted=(1, 0.02))

    found = kinds(rates, 2000, plain=(1, 0.01), drafted=(4, 0.02))

    assert sum(found[-900:]) > 800


def test_a_batch_whose_first_step_has_drafts_is_judged():
    """Such a step was planned for a larger batch, some of whose requests have ended since."""
    rates = RateComparison()
    rates.note(1, 3, 0.02, drafted=True)

    found = kinds(rates, 100, plain=(1, 0.01), drafted=(3, 0.02))

    assert found[-1]


# --- trials ---------------------------------------------------------------------------------------------------------------


def test_the_slower_kind_is_tried_for_eight_steps_after_512_others():
    """The first eight steps of each kind measure it."""
    slow_drafts = kinds(RateComparison(), 1100, plain=(1, 0.01), drafted=(1, 0.015))
    fast_drafts = kinds(RateComparison(), 1100, plain=(1, 0.015), drafted=(1, 0.01))

    assert (changes(slow_drafts), slow_drafts[0]) == ([8, 16, 512, 520, 1024, 1032], False)
    assert (changes(fast_drafts), fast_drafts[0]) == ([8, 512, 520, 1024, 1032], False)


def test_the_next_trial_waits_until_its_loss_is_a_small_share_of_the_time():
    """Eight steps of 110 ms in place of 10 ms lose 0.8 s, which is 1.5 % of 53.3 s; 5246 plain steps follow each trial."""
    found = kinds(RateComparison(), 10_600, plain=(1, 0.01), drafted=(1, 0.11))

    assert changes(found) == [8, 16, 5254, 5262, 10_508, 10_516]


def test_a_trial_of_plain_steps_loses_what_drafts_would_have_saved():
    """Eight steps of 50 ms in place of 10 ms lose 0.32 s, which is 1.5 % of 21.3 s."""
    found = kinds(RateComparison(), 2700, plain=(1, 0.05), drafted=(1, 0.01))

    assert changes(found) == [8, 512, 520, 2614, 2622]


def test_trials_of_the_slower_kind_lose_a_small_share_of_the_time():
    found = kinds(RateComparison(), 20_000, plain=(1, 0.01), drafted=(2, 0.3))

    lost_s = sum(found) * (0.3 - 2 * 0.01)
    assert sum(found) > 8
    assert lost_s / (20_000 * 0.01) < 0.03


# --- sizes of batches -----------------------------------------------------------------------------------------------------


def test_batches_of_other_sizes_are_judged_apart():
    rates = RateComparison()
    kinds(rates, 100, plain=(1, 0.01), drafted=(3, 0.02))

    found = kinds(rates, 500, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    assert rates.pays(1)
    assert sum(found) < 30


@pytest.mark.parametrize("num_requests", [31, 64])
def test_a_size_beside_one_that_drafts_slow_down_is_tried_after_512_steps(num_requests):
    rates = RateComparison()
    kinds(rates, 100, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    found = kinds(rates, 1000, plain=(30, 0.05), drafted=(90, 0.1), num_requests=num_requests)

    assert changes(found)[0] == 512
    assert all(found[-100:])


@pytest.mark.parametrize("num_requests", [1, 15, 128])
def test_a_size_far_from_one_that_drafts_slow_down_is_tried_at_once(num_requests):
    rates = RateComparison()
    kinds(rates, 100, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    assert changes(kinds(rates, 20, plain=(1, 0.01), drafted=(3, 0.02), num_requests=num_requests)) == [8]


# --- the time of the draft model ------------------------------------------------------------------------------------------


def seconds_behind(usual_s, behind_s):
    """Return the seconds that count against a step with drafts after prompts, of which each took the draft model so long.

    Args:
        usual_s: time of the draft model in the steps before.
        behind_s: its time for prompts.
    """
    rates = RateComparison()
    for draft_s in usual_s:
        rates.note(1, 1, 1.0, drafted=True, draft_s=draft_s)
    for draft_s in behind_s:
        rates.note_behind(draft_s)
    rates.note(1, 1, 1.0, drafted=False)
    known = rates._rates[1].drafted
    before_s = known.seconds
    rates.note(1, 1, 1.0, drafted=True)
    counted_s = known.seconds - 0.95 * before_s - 1.0

    rates.note(1, 1, 1.0, drafted=True)
    assert known.seconds == pytest.approx(0.95 * (0.95 * before_s + 1.0 + counted_s) + 1.0), "it counts once"
    return counted_s


@pytest.mark.parametrize(
    ("usual_s", "behind_s", "counted_s"),
    [([0.2], [0.5], 0.3), ([0.2], [0.5, 0.4], 0.5), ([0.2, 0.4], [0.5], 0.29), ([0.2], [0.1], 0.0), ([], [0.5], 0.5)],
    ids=["beyond its usual time", "all prompts", "one slow step hardly counts", "none", "nothing is usual yet"],
)
def test_the_time_for_prompts_counts_against_the_next_step_with_drafts(usual_s, behind_s, counted_s):
    assert seconds_behind(usual_s, behind_s) == pytest.approx(counted_s)


def test_a_step_without_a_draft_model_tells_nothing_of_its_usual_time():
    rates = RateComparison()
    rates.note(1, 1, 1.0, drafted=True)

    rates.note_behind(0.5)

    assert rates._behind_s == 0.5


def test_drafts_do_not_pay_where_prompts_cost_more_than_they_save():
    """The steps alone are faster with drafts, but each prompt costs the draft model more than it saves afterwards."""
    rates = RateComparison()
    found = []
    for step in range(2000):
        found.append(rates.pays(1))
        if found[-1] and step % 10 == 0:  # a request of 10 steps begins
            rates.note_behind(0.2)
        num_tokens, seconds = (2, 0.015) if found[-1] else (1, 0.01)
        rates.note(1, num_tokens, seconds, drafted=found[-1], draft_s=0.005 * found[-1])

    assert sum(found) / len(found) < 0.05
