"""What the pool evicts is kept on the host and brought back: the copies that a plan asks for, and what they bring."""

from random import Random

import pytest

from tests.engine_core_svc.worker_memory import LostBlocks, WorkerMemory
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.kv_cache.second_tier import HostTier
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.engine_core_svc.worker.wire import encode_plan
from tetrad.services.columns import unpack_u32
from tetrad.services.errors import InvalidRequest

BLOCK_SIZE = 4
OLD, NEW = list(range(100, 117)), list(range(200, 233))
"""17 tokens: 4 full blocks; 33 tokens: 8."""


@pytest.fixture
def bench(make_bench):
    """Eight blocks of the device that can be used, six of the host."""
    return make_bench(num_blocks=10, block_size=BLOCK_SIZE, num_host_blocks=6, events=LostBlocks())


def run(bench, prompt, **fields):
    """Run a request to its end; return its first plan."""
    request = bench.add(prompt, max_tokens=1, **fields)
    plan = bench.plan()
    bench.deliver()
    bench.run()
    return request, plan


def test_evicted_blocks_go_out_and_come_back_as_a_prefix(bench):
    run(bench, OLD)

    _, evicting = run(bench, NEW)
    again, returning = run(bench, OLD)

    assert sorted(host for _, host in evicting.swaps.out) == [0, 1, 2, 3]
    assert {host for host, _ in returning.swaps.back} == {0, 1, 2, 3}
    assert [block for _, block in returning.swaps.back] == list(returning.new_requests[0].block_ids[:4])
    assert again.num_cached_tokens == returning.new_requests[0].num_computed_tokens == 16
    stats = bench.scheduler.kv_cache.stats
    assert (stats.hits, stats.host_hits) == (16, 16)


def test_what_is_on_the_host_already_is_not_copied_out_again():
    tier = HostTier(2)
    tier.keep(b"a", 1)
    tier.keep(b"b", 2)
    tier.take_swaps()

    tier.keep(b"a", 3)

    assert tier.take_swaps().out == []
    assert tier.keep(b"c", 4) == b"b", "and counts as used"


def test_content_counts_as_removed_when_it_has_left_both_tiers(bench):
    events = bench.scheduler.kv_cache._events
    request, _ = run(bench, OLD)

    run(bench, NEW)
    after_first = list(events.lost)
    run(bench, list(range(300, 333)))

    assert after_first == []
    assert set(events.lost) & set(request.block_hashes[:4])


def test_a_reset_and_a_lost_worker_empty_the_second_tier_too(bench):
    tier = bench.scheduler.kv_cache.second_tier
    for forget in (bench.scheduler.reset_prefix_cache, bench.scheduler.forget_worker):
        run(bench, OLD)
        run(bench, NEW)
        assert tier.num_used

        forget()

        assert tier.num_used == 0
        assert run(bench, OLD)[0].num_cached_tokens == 0
        bench.scheduler.reset_prefix_cache()


def test_a_plan_never_gives_a_host_block_away_that_it_uses():
    tier = HostTier(2)
    tier.keep(b"a", 1)
    tier.take_swaps()

    held = tier.hold(b"a")
    answers = [tier.keep(b"b", 2), tier.keep(b"c", 3)]
    tier.bring_back([held], [2])
    swaps = tier.take_swaps()

    assert answers == [None, b"c"], "the last one finds no room"
    assert (swaps.out, swaps.back) == ([(2, 1)], [(0, 2)])
    assert tier.keep(b"d", 4) == b"a", "the least recently used one makes room for the next plan"


def test_the_worker_gets_both_kinds_of_copies_in_columns(bench):
    run(bench, OLD)
    run(bench, NEW)
    bench.add(OLD, max_tokens=1).payload = None
    plan = bench.plan()
    plan.new_requests.clear()  # their payload is another matter

    step = encode_plan(plan).step

    assert unpack_u32(step.swap_in.source_block_ids) == [host for host, _ in plan.swaps.back]
    assert unpack_u32(step.swap_in.target_block_ids) == [block for _, block in plan.swaps.back]
    assert unpack_u32(step.swap_out.source_block_ids) == [block for block, _ in plan.swaps.out]


@pytest.mark.parametrize("seed", range(12))
def test_random_walks_read_what_was_written_wherever_it_has_been(make_bench, seed):
    random = Random(seed)
    bench = make_bench(
        num_blocks=14, block_size=BLOCK_SIZE, num_host_blocks=random.choice([1, 3, 9, 40]), max_num_seqs=4,
        max_num_batched_tokens=random.choice([5, 16, 64]), policy=random.choice(["fcfs", "priority"]),
    )  # fmt: skip
    bench.next_token = lambda key, length: 500 + length % 3
    memory, prompts = WorkerMemory(BLOCK_SIZE), [[family * 100 + i for i in range(30)] for family in range(4)]

    for _ in range(300):
        kind = random.random()
        if kind < 0.3:
            prompt = random.choice(prompts)[: random.randint(1, 30)]
            bench.add(prompt, max_tokens=random.randint(1, 12), priority=random.randint(0, 2), max_model_len=48)
        elif kind < 0.33 and bench.scheduler.requests:
            bench.scheduler.finish_requests([random.choice(list(bench.scheduler.requests))], RequestStatus.FINISHED_ABORTED)
        elif kind < 0.34:
            bench.scheduler.forget_worker()
            bench.in_flight.clear()
            memory = WorkerMemory(BLOCK_SIZE)
        elif kind < 0.7 and len(bench.in_flight) < 2 and (plan := bench.plan()) is not None:
            assert not memory.run(plan, bench.in_flight[-1][1])
        elif bench.in_flight:
            bench.deliver()
    bench.run()

    tier = bench.scheduler.kv_cache.second_tier
    assert bench.num_free == 13
    assert tier.num_used + len(tier._free) == tier.num_blocks
    assert tier.num_swapped_out
    assert tier.num_swapped_in


def layout(**settings):
    return plan_layout(
        EngineCoreSettings(**settings), block_size_bytes=1 << 20, available_bytes=1 << 30, max_position_embeddings=512
    )


def test_swap_space_is_counted_in_gib():
    assert (layout().num_host_blocks, layout(swap_space=0.5).num_host_blocks) == (0, 512)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"swap_space": 1.0, "enable_prefix_caching": False}, "swap_space 1 .* enable_prefix_caching is off"),
        ({"swap_space": 0.0001}, "swap_space 0.0001 GiB holds no KV block, which has 1048576 bytes"),
    ],
)
def test_swap_space_without_use_is_refused(settings, text):
    with pytest.raises(InvalidRequest, match=text):
        layout(**settings)


def test_copies_are_counted_each_way():
    tier = HostTier(3)
    counts = [(tier.num_swapped_out, tier.num_swapped_in)]
    for number in (1, 2, 3):
        tier.keep(bytes([number]), number)
    tier.keep(bytes([1]), 4)  # is here already
    counts.append((tier.num_swapped_out, tier.num_swapped_in))

    for hashes in ((1,), (2, 3)):
        tier.bring_back([tier.hold(bytes([number])) for number in hashes], [10 + number for number in hashes])
    counts.append((tier.num_swapped_out, tier.num_swapped_in))

    assert counts == [(0, 0), (3, 0), (3, 3)]


def test_host_blocks_are_used_from_the_first_on_again_after_everything_was_forgotten():
    tier = HostTier(2)
    tier.keep(b"a", 1)
    tier.take_swaps()

    tier.clear()
    tier.keep(b"b", 5)
    tier.keep(b"c", 6)

    assert tier.take_swaps().out == [(5, 0), (6, 1)]


def test_what_was_evicted_after_the_worker_was_lost_is_told_too(bench):
    events = bench.scheduler.kv_cache._events
    bench.scheduler.forget_worker()
    request, _ = run(bench, OLD)
    events.lost.clear()

    for start in (300, 400, 500):
        run(bench, list(range(start, start + 33)))

    assert set(request.block_hashes[:4]) <= set(events.lost)


def test_a_host_without_blocks_keeps_nothing():
    tier = HostTier(0)

    assert tier.keep(b"a", 1) == b"a"
    assert tier.take_swaps().out == []
