"""The scheduler's counts, as sessions and operators get them."""

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts
from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats, take_stats


def test_a_scheduler_without_requests_is_idle(make_bench):
    stats = take_stats(make_bench().scheduler)

    assert stats.is_idle
    assert stats == SchedulerStats(0, 0, 0.0, 0, 0, 0, 0, running_loras=[], waiting_loras=[])


def test_requests_blocks_and_steps_are_counted(make_bench):
    """The second request finds the first block of the first one, and the third waits; 3 of 10 blocks are in use."""
    bench = make_bench(num_blocks=11, block_size=4, max_num_seqs=2)
    bench.add([1, 2, 3, 4, 5])
    bench.step()
    for last in (6, 7):
        bench.add([1, 2, 3, 4, 5, last])
    bench.step()

    stats = take_stats(bench.scheduler)

    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.step_counter) == (2, 1, 2)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (11, 4)
    assert stats.kv_cache_usage == pytest.approx(0.3)
    assert not stats.is_idle


def test_preemptions_are_counted(make_bench):
    bench = make_bench()
    for _ in range(2):
        bench.add(5)
    bench.step()

    bench.scheduler.reset_prefix_cache(preempt_running=True)

    stats = take_stats(bench.scheduler)
    assert (stats.num_preemptions, stats.num_running_reqs, stats.num_waiting_reqs) == (2, 0, 2)


def test_drafts_are_counted_by_their_places(make_bench):
    """Of three drafts the first two are right."""
    bench = make_bench(drafts=SameDrafts(56, 57, 9))
    bench.next_token = lambda _key, length: 50 + length
    bench.add(5)
    for _ in range(2):
        bench.step()

    stats = take_stats(bench.scheduler)

    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 2)
    assert stats.num_accepted_by_place == (1, 1, 0, 0, 0, 0, 0, 0)


def test_running_and_awaited_adapters_are_named(make_bench):
    adapters = Adapters(AdapterLimits(max_loras=1, max_cpu_loras=1), ORDERS_OF_ARRIVAL["fcfs"])
    bench = make_bench(adapters=adapters)
    adapters.worker_ready()
    for number in (1, 2):
        bench.add(3, adapter=adapters.resolve(ref(number)))
    adapters.loaded(adapters.resolve(ref(1)), b"digest")

    stats = take_stats(bench.scheduler)

    assert (stats.running_loras, stats.waiting_loras) == (["a1"], ["a2"])
