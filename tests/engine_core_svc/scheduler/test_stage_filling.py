"""StageFilling: steps in flight have different requests, so that every stage of a pipeline has a step to compute."""

from random import Random

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts, WorkerDrafts
from tetrad.engine_core_svc.scheduler.budget import NoStages
from tetrad.engine_core_svc.scheduler.prefill_throttle import NoThrottle
from tetrad.engine_core_svc.scheduler.stage_filling import StageFilling


@pytest.fixture
def make_pipeline(make_bench):
    """Return a maker of benches whose worker has so many stages."""

    def make(num_stages, **limits):
        return make_bench(stages=StageFilling(num_stages) if num_stages > 1 else NoStages(), **limits)

    return make


def in_flight(bench, depth):
    """Plan until so many steps are in flight, or none can be planned; return the keys of each."""
    while len(bench.in_flight) < depth and bench.plan() is not None:
        pass
    return [set(plan.num_scheduled_tokens()) for plan, _ in bench.in_flight]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_requests_that_arrive_together_are_divided_among_the_stages(make_pipeline, num_stages):
    bench = make_pipeline(num_stages)
    requests = [bench.add(3) for _ in range(12)]

    planned = in_flight(bench, num_stages)

    assert [len(keys) for keys in planned] == [12 // num_stages] * num_stages
    assert set().union(*planned) == {request.key for request in requests}


def test_a_request_that_arrives_alone_has_the_next_step_for_itself(make_pipeline):
    bench = make_pipeline(2)
    bench.add(3)
    bench.plan()
    arrived = bench.add(3)

    assert bench.plan().num_scheduled_tokens() == {arrived.key: 3}


def test_the_step_behind_a_full_pipeline_repeats_the_oldest_one(make_pipeline):
    bench = make_pipeline(2)
    for _ in range(6):
        bench.add(3)
    for _ in range(5):
        first, second, third = in_flight(bench, 3)
        assert third == first
        assert not first & second
        bench.deliver()


def test_a_request_alone_has_its_next_step_planned_ahead(make_pipeline):
    bench = make_pipeline(3)
    request = bench.add(3)

    assert in_flight(bench, 4) == [{request.key}, {request.key}]


def test_requests_that_arrive_one_by_one_end_up_in_as_many_steps_as_stages(make_pipeline):
    bench = make_pipeline(2)
    for _ in range(5):
        bench.add(3, max_tokens=64)
        in_flight(bench, 3)
        bench.deliver()
    for _ in range(8):
        in_flight(bench, 3)
        bench.deliver()

    first, second, _ = in_flight(bench, 3)

    assert sorted(map(len, (first, second))) == [2, 3]
    assert not first & second


def test_chunks_of_a_prompt_follow_each_other_without_waiting(make_pipeline):
    bench = make_pipeline(2, max_num_batched_tokens=16)
    request = bench.add(48)

    assert in_flight(bench, 3) == [{request.key}] * 3


@pytest.mark.parametrize("num_stages", [2, 3])
def test_prompts_in_chunks_do_not_keep_later_requests_from_decoding(make_pipeline, num_stages):
    """The prompts are first in order, and a chunk is in every plan."""
    bench = make_pipeline(num_stages, max_num_batched_tokens=64, long_prefill_token_threshold=8)
    prompts = [bench.add(800) for _ in range(2)]
    decoding = [bench.add(3, max_tokens=64) for _ in range(2)]

    for _ in range(10 * num_stages):
        in_flight(bench, num_stages + 1)
        bench.deliver()

    assert [request.num_output_tokens for request in prompts] == [0, 0]
    assert all(request.num_output_tokens >= 9 for request in decoding)


@pytest.mark.parametrize("drafts", [SameDrafts(9), WorkerDrafts()], ids=["verified", "asked for"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_all_requests_run_while_plans_with_drafts_are_alone_in_flight(make_pipeline, num_stages, drafts):
    bench = make_pipeline(num_stages, drafts=drafts)
    requests = [bench.add(3, max_tokens=64) for _ in range(6)]

    for _ in range(12):
        in_flight(bench, num_stages + 1)
        bench.deliver()

    assert all(request.num_output_tokens >= 8 for request in requests)


class LimitedPrompts(NoThrottle):
    """Limits prompts to 8 tokens of a step beside requests that decode."""

    def prompt_tokens(self, num_decoding, num_waiting):
        return 8 if num_decoding else None


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_prompt_is_limited_beside_requests_that_decode_in_other_steps(make_pipeline, num_stages):
    """A preempted request is computed again, and is first in order. The requests after it decode in one of several steps."""
    bench = make_pipeline(num_stages, throttle=LimitedPrompts(), max_num_batched_tokens=64, enable_caching=False)
    preempted = bench.add(1600, max_tokens=100)
    decoding = [bench.add(3, max_tokens=100) for _ in range(2)]
    while not all(request.num_output_tokens for request in (preempted, *decoding)):
        in_flight(bench, num_stages + 1)
        bench.deliver()
    bench.scheduler.states.preempt(preempted)
    num_before = [request.num_output_tokens for request in decoding]

    for _ in range(12 * num_stages):
        in_flight(bench, num_stages + 1)
        bench.deliver()

    assert all(request.num_output_tokens - before >= 10 for request, before in zip(decoding, num_before, strict=True))
    assert preempted.num_computed_tokens < 8 * 16 * num_stages


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("num_blocks", [12, 10_000])
def test_every_request_gets_its_tokens_with_preemptions_and_arrivals(make_pipeline, num_stages, num_blocks):
    random = Random(num_stages)
    bench = make_pipeline(num_stages, num_blocks=num_blocks, block_size=4, max_num_batched_tokens=12, max_num_seqs=5)
    requests = []
    for _ in range(12):
        requests.append(bench.add(random.randint(1, 14), max_tokens=random.randint(1, 12)))
        in_flight(bench, num_stages + 1)
        bench.deliver()

    bench.run(depth=num_stages + 1)

    assert [request.token_ids[request.num_prompt_tokens :] for request in requests] == [
        [1000 + request.key] * (request.max_total_tokens - request.num_prompt_tokens) for request in requests
    ]


def test_a_lost_worker_leaves_no_step_in_flight(make_pipeline):
    bench = make_pipeline(2)
    requests = [bench.add(3) for _ in range(4)]
    in_flight(bench, 3)

    bench.scheduler.forget_worker()
    bench.in_flight.clear()

    assert in_flight(bench, 2) == [{request.key for request in requests[:2]}, {request.key for request in requests[2:]}]


class DraftsOnce(SameDrafts):
    """Proposes after the first result alone."""

    def propose(self, requests, result):
        return super().propose(requests, result) if result.step_id == 0 else {}


def test_drafts_from_before_a_later_token_are_not_verified_although_another_stage_answered_between(make_pipeline):
    bench = make_pipeline(2, drafts=DraftsOnce(9))
    first, second = bench.add(3), bench.add(3)
    planned = in_flight(bench, 3)
    for _ in range(3):
        bench.deliver()

    plan = bench.plan()

    assert planned == [{first.key}, {second.key}, {first.key}]
    assert plan.draft_tokens == {}
