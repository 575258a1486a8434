"""Drafts of a model on the worker: whether they pay is measured, and blocks are given for them."""

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import WorkerDrafts
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for
from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison


def kinds(rates, num_steps, *, plain, drafted, num_requests=1):
    """Return which of so many steps were drafted; a kind is (tokens, seconds) of a step."""
    found = []
    for _ in range(num_steps):
        found.append(rates.pays(num_requests))
        num_tokens, seconds = drafted if found[-1] else plain
        rates.note(num_requests, num_tokens, seconds, drafted=found[-1])
    return found


@pytest.mark.parametrize(("drafted", "share"), [((3, 0.02), 0.97), ((3, 0.05), 0.01), ((1, 0.011), 0.02)])
def test_the_faster_kind_of_step_goes_on(drafted, share):
    found = kinds(RateComparison(), 2000, plain=(1, 0.01), drafted=drafted)

    assert sum(found) / len(found) == pytest.approx(share, abs=0.02)


def test_a_kind_that_became_faster_is_found():
    rates = RateComparison()
    kinds(rates, 600, plain=(1, 0.01), drafted=(1, 0.02))

    found = kinds(rates, 2000, plain=(1, 0.01), drafted=(4, 0.02))

    assert sum(found[-900:]) > 800


def test_trials_of_the_slower_kind_lose_a_small_share_of_the_time():
    found = kinds(RateComparison(), 20_000, plain=(1, 0.01), drafted=(2, 0.3))

    lost_s = sum(found) * (0.3 - 2 * 0.01)
    assert sum(found) > 8
    assert lost_s / (20_000 * 0.01) < 0.03


def test_time_in_which_the_draft_model_computes_prompts_counts_against_drafts():
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


def test_one_slow_step_of_the_draft_model_hides_no_time_of_prompts():
    """A prompt takes the draft model 25 ms, beyond the 5 ms that its usual step takes; without that, drafts would pay."""
    rates = RateComparison()
    kinds(rates, 8, plain=(1, 0.01), drafted=(2, 0.018))

    for draft_s in (0.005,) * 6 + (0.015,):
        rates.note(1, 2, 0.018, drafted=True, draft_s=draft_s)
    rates.note_behind(0.025)
    rates.note(1, 2, 0.018, drafted=True, draft_s=0.005)

    assert not rates.pays(1)


def test_a_batch_whose_first_step_has_drafts_is_judged():
    """Such a step was planned for a larger batch, some of whose requests have ended since."""
    rates = RateComparison()
    rates.note(1, 3, 0.02, drafted=True)

    found = kinds(rates, 100, plain=(1, 0.01), drafted=(3, 0.02))

    assert found[-1]


def test_batches_of_other_sizes_are_judged_apart():
    rates = RateComparison()
    kinds(rates, 100, plain=(1, 0.01), drafted=(3, 0.02))

    found = kinds(rates, 500, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    assert rates.pays(1)
    assert sum(found) < 30


def test_a_size_beside_one_that_drafts_slow_down_is_tried_late():
    rates = RateComparison()
    kinds(rates, 100, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    found = kinds(rates, 1000, plain=(30, 0.05), drafted=(90, 0.1), num_requests=30)

    assert not any(found[:500])
    assert all(found[-100:])


def test_a_size_far_from_one_that_drafts_slow_down_is_tried_at_once():
    rates = RateComparison()
    kinds(rates, 100, plain=(32, 0.05), drafted=(90, 0.2), num_requests=32)

    assert any(kinds(rates, 20, plain=(1, 0.01), drafted=(3, 0.02)))


def test_the_worker_is_asked_while_drafts_pay_and_its_proposals_are_verified():
    drafts = drafts_for(read_speculative_config({"method": "draft_model", "model": "m", "num_speculative_tokens": 3}))
    asked = []
    for step in range(40):
        asked.append(drafts.num_from_worker(1))
        proposals = {1: [5] * asked[-1]} if asked[-1] else {}
        drafts.observe(MeasuredStep(1, 0.02 if asked[-1] else 0.01, 0.0, waited=True))
        result = ModelRunnerOutput(step, [1], [(5,) * (1 + asked[-1])], draft_tokens=proposals)
        assert drafts.propose([], result) == proposals

    assert asked[0] == 0
    assert set(asked[20:]) == {3}


def test_the_worker_is_seldom_asked_where_its_proposals_take_longer_than_they_bring():
    drafts = drafts_for(read_speculative_config({"method": "draft_model", "model": "m", "num_speculative_tokens": 3}))
    asked = []
    for step in range(400):
        asked.append(drafts.num_from_worker(1))
        proposals = {1: [5] * asked[-1]} if asked[-1] else {}
        drafts.observe(MeasuredStep(1, 0.1 if asked[-1] else 0.01, 0.0, waited=True))
        drafts.propose([], ModelRunnerOutput(step, [1], [(5,) * (1 + asked[-1])], draft_tokens=proposals))

    assert 0 < sum(map(bool, asked)) < 60


def test_a_worker_that_proposes_nothing_is_seldom_asked():
    """A head proposes no tokens beyond its largest position; a plan that asks it is alone in flight all the same."""
    drafts = drafts_for(read_speculative_config({"method": "mtp", "num_speculative_tokens": 3}))
    asked = []
    for step in range(400):
        asked.append(drafts.num_from_worker(1))
        asks = bool(asked[-1])
        drafts.observe(MeasuredStep(1, 0.01, 0.001 if asks else 0.0, waited=asks, asks=asks))
        drafts.propose([], ModelRunnerOutput(step, [1], [(5,)]))

    assert 0 < sum(map(bool, asked)) < 60


def test_a_plan_that_asks_the_worker_is_measured_as_such(make_bench):
    drafts = WorkerDrafts()
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda sizes: 0.01
    bench.add(3, max_tokens=9)
    for _ in range(3):
        bench.step()

    assert [step.asks for step in drafts.measured] == [True, True]


def test_a_plan_that_asks_the_worker_is_the_last_in_flight_until_its_result_is_there(make_bench):
    """Also when the result of a plan before it arrives: the next plan verifies the proposals."""
    drafts = WorkerDrafts()
    bench = make_bench(drafts=drafts)
    drafts.max_tokens = 0
    bench.add(3)
    bench.plan()
    drafts.max_tokens = 4
    asking = bench.plan()

    bench.deliver()

    assert asking.num_spec_tokens == 4
    assert bench.plan() is None


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens", "num_blocks"), [(6, 10, 1), (7, 2, 1), (6, 2, 0)])
def test_blocks_are_given_for_what_the_worker_will_propose(make_bench, num_prompt_tokens, max_tokens, num_blocks):
    """7 or 8 tokens are in two blocks of 4; 4 proposals, or a ninth token that may still come, need a third."""
    bench = make_bench(drafts=WorkerDrafts(), block_size=4, num_blocks=10)
    bench.add(num_prompt_tokens, max_tokens=max_tokens)
    bench.step()

    plan = bench.plan()

    assert plan.num_spec_tokens == 4
    assert [len(blocks) for [blocks] in plan.cached_requests.new_blocks] == [num_blocks]


def test_nobody_waits_for_blocks_of_proposals(make_bench):
    bench = make_bench(drafts=WorkerDrafts(), block_size=4, num_blocks=3)
    request = bench.add(6, max_tokens=2)
    bench.step()

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {request.key: 1}
    assert [len(blocks) for [blocks] in plan.cached_requests.new_blocks] == [0]
