"""Prefixes that are found again, and prefixes that are not."""

import pytest

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler

COMMON = list(range(100, 148))  # three full blocks of 16


def test_golden_free_list_through_the_scheduler(make_bench):
    """The same vector as in the pool's test, reached by two real requests."""
    bench = make_bench(num_blocks=11)
    bench.add([*COMMON, *range(7)], max_tokens=1)
    bench.add([*COMMON, *range(50, 55)], max_tokens=1)

    bench.plan()
    first, second = bench.scheduler.running
    assert (first.block_tables, second.block_tables) == ([[1, 2, 3, 4]], [[1, 2, 3, 5]])
    bench.deliver()

    assert bench.scheduler.kv_cache.pool.free_blocks() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_a_prompt_seen_before_computes_only_what_is_new(make_bench):
    bench = make_bench()
    bench.add([*COMMON, 1, 2], max_tokens=1)
    bench.run()

    second = bench.add([*COMMON, 3, 4, 5], max_tokens=1)

    assert bench.step() == {second.key: 3}
    assert second.num_cached_tokens == 48


def test_a_full_hit_recomputes_the_last_block_for_its_logits(make_bench):
    bench = make_bench()
    bench.add(COMMON, max_tokens=1)
    bench.run()

    second = bench.add(COMMON, max_tokens=1)

    assert bench.step() == {second.key: 16}


def test_two_requests_of_the_same_step_share_blocks(make_bench):
    bench = make_bench()
    first, second = bench.add([*COMMON, 1]), bench.add([*COMMON, 2])

    assert bench.step() == {first.key: 49, second.key: 1}
    assert first.block_tables[0][:3] == second.block_tables[0][:3]


def test_a_partial_block_is_never_shared(make_bench):
    bench = make_bench()
    bench.add(COMMON[:20], max_tokens=1)
    bench.run()

    second = bench.add(COMMON[:20], max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == 16


def test_generated_tokens_are_found_as_a_prefix_too(make_bench):
    bench = make_bench()
    first = bench.add(COMMON[:10], max_tokens=30)
    bench.run()

    second = bench.add(first.token_ids, max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == 32


def test_a_cache_salt_separates_equal_prompts(make_bench):
    bench = make_bench()
    bench.add(COMMON, max_tokens=1, cache_salt="tenant a")
    bench.run()

    stranger, friend = bench.add(COMMON, max_tokens=1), bench.add(COMMON, max_tokens=1, cache_salt="tenant a")

    assert bench.step() == {stranger.key: 48, friend.key: 16}


def test_a_request_that_skips_reading_still_writes(make_bench):
    bench = make_bench()
    bench.add(COMMON, max_tokens=1, skip_reading_prefix_cache=True)
    reader = bench.add(COMMON, max_tokens=1)

    assert bench.step()[reader.key] == 16


def test_without_prefix_caching_everything_is_computed(make_bench):
    bench = make_bench(enable_caching=False)
    bench.add(COMMON, max_tokens=1)
    bench.run()

    second = bench.add(COMMON, max_tokens=1)

    assert bench.step() == {second.key: 48}


def test_blocks_that_would_be_adopted_are_not_counted_as_free_besides(make_bench):
    """Three cached blocks are the only free ones: a prompt of four blocks with that prefix cannot be admitted."""
    bench = make_bench(num_blocks=8)
    bench.add([*COMMON, 0], max_tokens=1)
    bench.run()
    holder = bench.add(49, max_tokens=30)
    bench.step()
    assert bench.num_free == 3

    bench.add([*COMMON, 1], max_tokens=1)
    scheduled = bench.step()

    assert scheduled == {holder.key: 1}


def test_reset_refuses_while_blocks_are_in_use_unless_it_may_preempt(make_bench):
    bench = make_bench()
    request = bench.add(COMMON)
    bench.step()

    assert not bench.scheduler.reset_prefix_cache()
    assert bench.scheduler.reset_prefix_cache(preempt_running=True)

    assert bench.step() == {request.key: 49}


def test_reset_forgets_what_an_ended_request_has_computed_while_its_last_plan_is_in_flight(make_bench):
    """So /pause?mode=abort forgets the prefixes of the requests that it ends."""
    bench = make_bench()
    request = bench.add(COMMON)
    bench.step()
    bench.plan()
    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)

    assert bench.scheduler.reset_prefix_cache()

    bench.deliver()
    again = bench.add(COMMON)
    assert bench.step() == {again.key: 48}
    assert bench.scheduler.kv_cache.pool.find(again.block_hashes[0]) is not None


def test_reset_refuses_while_a_request_shares_the_blocks_of_an_ended_one(make_bench):
    bench = make_bench()
    first, _ = bench.add([*COMMON, 1]), bench.add([*COMMON, 2])
    bench.step()
    bench.plan()
    bench.scheduler.finish_requests([first.key], RequestStatus.FINISHED_ABORTED)

    assert not bench.scheduler.reset_prefix_cache()


def test_statistics_count_no_lookup_after_a_preemption_and_none_that_was_not_made(make_bench):
    """As in vLLM: else requests that lose their blocks, or their worker, change the share of prompts that were found."""
    bench = make_bench()
    bench.add(COMMON, max_tokens=3)
    bench.add([*range(500, 548)], max_tokens=3, skip_reading_prefix_cache=True)
    bench.step()
    bench.scheduler.states.preempt_all()
    bench.run()

    stats = bench.scheduler.kv_cache.stats
    assert (stats.queries, stats.hits) == (48, 0)


def test_a_prompt_preempted_between_chunks_counts_none_of_its_own_blocks_as_cached(make_bench):
    """Its usage names the tokens that were found when it first began, as in vLLM."""
    bench = make_bench(max_num_batched_tokens=32)
    bench.add(COMMON[:32], max_tokens=1)
    bench.run()
    request = bench.add([*COMMON[:32], *range(500, 564)], max_tokens=3)
    bench.step()
    bench.scheduler.states.preempt_all()
    again = bench.plan()
    bench.deliver()

    assert again.new_requests[0].num_computed_tokens > 32
    assert request.num_cached_tokens == 32


def test_statistics_count_each_request_once(make_bench):
    bench = make_bench()
    for _ in range(3):
        bench.add(COMMON, max_tokens=3)
        bench.run()

    stats = bench.scheduler.kv_cache.stats
    assert (stats.queries, stats.hits) == (3 * 48, 2 * 32)


@pytest.mark.parametrize(("options", "num_found"), [({}, 32), ({"enable_caching": True}, 32), ({"enable_caching": False}, 0)])
def test_prefixes_are_shared_unless_that_is_turned_off(options, num_found):
    scheduler = Scheduler(SchedulerLimits(), KVCacheManager(20, 16, **options))
    for key in (1, 2):
        scheduler.add_request(Request(key, f"r{key}", COMMON[:], 48, 50, sequence_number=key))

    plan = scheduler.schedule()

    assert [new.num_computed_tokens for new in plan.new_requests] == [0, num_found]
