"""Drafts of a model on the worker: whether they pay is measured, and blocks are given for them."""

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import WorkerDrafts
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for


def test_the_worker_is_asked_while_drafts_pay_and_its_proposals_are_verified():
    drafts = drafts_for(read_speculative_config({"method": "draft_model", "model": "m", "num_speculative_tokens": 3}))
    asked = []
    for step in range(40):
        asked.append(drafts.num_from_worker(1))
        proposals = {1: [5] * asked[-1]} if asked[-1] else {}
        drafts.observe(MeasuredStep(1, 0.02 if asked[-1] else 0.01, 0.0, waited=True))
        result = ModelRunnerOutput(step, [1], [(5,) * (1 + asked[-1])], draft_tokens=proposals)
        assert drafts.propose([], result) == proposals

    assert asked[:9] == [0] * 8 + [3]
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


def test_the_time_of_prompts_beyond_a_usual_step_with_drafts_counts_for_the_next():
    drafts = drafts_for(read_speculative_config({"method": "draft_model", "model": "m", "num_speculative_tokens": 3}))
    for step in range(2):
        drafts.observe(MeasuredStep(1, 0.1, 0.0, waited=True, asks=True))
        drafts.propose([], ModelRunnerOutput(step, [1], [(5,)], draft_s=0.2))

    drafts.propose([], ModelRunnerOutput(3, [1], [(5,)], draft_s=0.5))

    assert drafts._rates._behind_s == pytest.approx(0.3)


@pytest.mark.parametrize("num_asked", [0, 1, 4])
def test_a_plan_that_asks_the_worker_is_measured_as_such(make_bench, num_asked):
    drafts = WorkerDrafts()
    drafts.num_from_worker = lambda _: num_asked
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda sizes: 0.01
    bench.add(3, max_tokens=9)
    for _ in range(3):
        bench.step()

    assert [step.asks for step in drafts.measured] == [num_asked > 0] * 2


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
