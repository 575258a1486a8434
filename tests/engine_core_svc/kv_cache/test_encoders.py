"""Encoders keep no keys and values: their prompts are computed whole, and no block is allocated, counted or cached for them."""

import pytest

from tetrad.engine_core_svc.core.request import Purpose


@pytest.fixture
def bench(make_bench):
    """Return a bench of an encoder with a single free block, whose steps have at most 64 tokens."""
    return make_bench(windows=(), num_blocks=2, block_size=4, max_num_batched_tokens=64, enable_chunked_prefill=False)


def pool(bench, prompt):
    return bench.add(prompt, max_tokens=1, purpose=Purpose.POOLING)


def test_prompts_need_no_blocks(bench):
    requests = [pool(bench, 40), pool(bench, 20)]

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {request.key: request.num_prompt_tokens for request in requests}
    assert [new.block_tables for new in plan.new_requests] == [[], []]
    assert bench.num_free == 1
    assert [output.pooling_output for output in bench.deliver()] == [bench.vector(request.key) for request in requests]
    assert not bench.scheduler.has_requests


def test_a_prompt_that_does_not_fit_a_step_waits_for_the_next_one(bench):
    first, second = pool(bench, 40), pool(bench, 40)

    assert [bench.step(), bench.step()] == [{first.key: 40}, {second.key: 40}]


def test_equal_prompts_are_computed_again(bench):
    requests = [pool(bench, list(range(20))) for _ in range(2)]

    assert bench.step() == {request.key: 20 for request in requests}
    assert bench.scheduler.kv_cache.stats.queries == 0


def test_a_prompt_is_computed_again_on_the_next_worker(bench):
    request = pool(bench, 40)
    bench.plan()
    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    bench.worker_lengths.clear()

    assert bench.step() == {request.key: 40}
    assert request.is_finished


def test_a_request_holds_and_will_hold_no_block(bench):
    request, kv_cache = pool(bench, 40), bench.scheduler.kv_cache

    assert (kv_cache.blocks_for(40), list(kv_cache.blocks_of(request)), kv_cache.blocks_missing(request)) == (0, [], -1)
    assert list(kv_cache.extend_ahead(request, 4)) == []
