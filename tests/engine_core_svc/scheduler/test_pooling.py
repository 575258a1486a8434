"""Requests that are pooled: their prompt in chunks, then one vector, then nothing."""

import pytest

from tetrad.engine_core_svc.core.plan import FinishReason, ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Purpose
from tetrad.services.errors import InternalError


@pytest.fixture
def bench(make_bench):
    return make_bench(num_blocks=30, block_size=4, max_num_batched_tokens=16)


def pool(bench, prompt=40, **fields):
    return bench.add(prompt, max_tokens=1, purpose=Purpose.POOLING, **fields)


def test_a_request_ends_with_the_last_chunk_of_its_prompt_and_brings_its_vector(bench):
    request = pool(bench)

    chunks = [bench.step()[request.key] for _ in range(2)]
    plan = bench.plan()
    [output] = bench.deliver()

    assert (chunks, plan.num_scheduled_tokens()) == ([16, 16], {request.key: 8})
    assert (output.finish_reason, output.new_token_ids) == (FinishReason.STOP, [])
    assert output.pooling_output == bench.vector(request.key)
    assert output.prefill_stats.num_prompt_tokens == 40


def test_its_blocks_are_free_at_once_and_its_prefix_stays_cached(bench):
    prompt = list(range(40))
    pool(bench, prompt)
    bench.run()

    again = pool(bench, prompt)
    bench.plan()

    assert again.num_cached_tokens == 36
    bench.deliver()
    assert bench.num_free == 29


@pytest.mark.parametrize("depth", [1, 3])
def test_nothing_is_planned_behind_its_last_chunk(bench, depth):
    request = pool(bench, 16)

    bench.run(depth=depth)

    assert [plan.num_scheduled_tokens() for plan in bench.plans] == [{request.key: 16}]


def test_it_runs_beside_requests_that_generate(bench):
    other, request = bench.add(3, max_tokens=4), pool(bench)

    bench.run(depth=2)

    assert other.num_output_tokens == 4
    assert (request.num_output_tokens, request.is_finished, bench.num_free) == (0, True, 29)


@pytest.mark.parametrize("prompt", [3, 40])
def test_neither_kind_starves_while_the_other_one_keeps_coming(bench, prompt):
    """A step has room for 16 tokens, and more than these arrive with each."""
    generating = bench.add(30, max_tokens=8)
    pooling = [pool(bench, prompt) for _ in range(8)]
    for _ in range(40):
        bench.step()
        pool(bench, prompt)

    assert generating.is_finished
    assert all(request.is_finished for request in pooling)

    late = pool(bench, prompt)
    for _ in range(400):
        bench.step()
        if sum(request.purpose is Purpose.GENERATION for request in bench.scheduler.running) < 2:
            bench.add(3, max_tokens=16)

    assert late.is_finished


def test_it_is_computed_again_after_a_preemption_and_a_lost_worker(bench):
    request = pool(bench)
    bench.step()

    bench.scheduler.reset_prefix_cache(preempt_running=True)
    bench.step()
    bench.scheduler.forget_worker()
    for _ in range(2):
        bench.step()
    bench.plan()
    [output] = bench.deliver()

    assert output.pooling_output == bench.vector(request.key)
    assert bench.num_free == 29


def test_a_result_without_its_vector_fails_it_alone(bench):
    request, other = pool(bench, 4), bench.add(3, max_tokens=4)
    plan = bench.plan()

    outputs = bench.scheduler.update(ModelRunnerOutput(plan.step_id, [request.key, other.key], [(), (7,)]))

    assert isinstance(outputs[0].error, InternalError)
    assert (outputs[0].finish_reason, outputs[1].new_token_ids) == (FinishReason.ERROR, [7])
