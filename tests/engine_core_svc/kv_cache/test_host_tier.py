"""Host tier: blocks that the pool evicts are copied to the host and back; checks a plan's copies and their content."""

from random import Random

import pytest

from tests.engine_core_svc.kv_cache.worker_memory import STATE, LostBlocks, WorkerMemory, group_of
from tests.engine_core_svc.scheduler.fake_drafts import GuessedDrafts, WorkerDrafts
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.kv_cache.host_tier import HostTier
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.engine_core_svc.worker.wire import encode_plan
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import unpack_u32

BLOCK_SIZE = 4
OLD, NEW = list(range(100, 117)), list(range(200, 233))
"""17 tokens: 4 full blocks; 33 tokens: 8."""


@pytest.fixture
def bench(make_bench):
    """Eight blocks of the device that can be used, six of the host."""
    return make_bench(num_blocks=10, block_size=BLOCK_SIZE, num_host_blocks=6, connector=LostBlocks())


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
    assert [block for _, block in returning.swaps.back] == list(returning.new_requests[0].block_tables[0][:4])
    assert again.num_cached_tokens == returning.new_requests[0].num_computed_tokens == 16
    stats = bench.scheduler.kv_cache.stats
    assert (stats.hits, stats.host_hits) == (16, 16)


def test_tokens_that_come_back_are_counted_since_start(make_bench):
    bench = make_bench(num_blocks=10, block_size=BLOCK_SIZE, num_host_blocks=40)
    for first in (200, 300):
        run(bench, OLD)
        run(bench, list(range(first, first + 33)))
    run(bench, OLD)

    stats = bench.scheduler.kv_cache.stats
    assert (stats.hits, stats.host_hits) == (32, 32)


def test_what_is_on_the_host_already_is_not_copied_out_again():
    tier = HostTier(2)
    tier.evicted(b"a", 1)
    tier.evicted(b"b", 2)
    tier.take_swaps()

    tier.evicted(b"a", 3)

    assert tier.take_swaps().out == []
    assert tier.evicted(b"c", 4) == b"b", "and counts as used"


def test_content_counts_as_removed_when_it_has_left_both_tiers(bench):
    events = bench.scheduler.kv_cache.connector._connectors[1]
    request, _ = run(bench, OLD)

    run(bench, NEW)
    after_first = list(events.lost)
    run(bench, list(range(300, 333)))

    assert after_first == []
    assert set(events.lost) & set(request.block_hashes[:4])


def test_a_reset_and_a_lost_worker_empty_the_second_tier_too(bench):
    connector = bench.scheduler.kv_cache.connector
    for forget in (bench.scheduler.reset_prefix_cache, bench.scheduler.forget_worker):
        run(bench, OLD)
        run(bench, NEW)
        assert connector.stats().num_used

        forget()

        assert connector.stats().num_used == 0
        assert run(bench, OLD)[0].num_cached_tokens == 0
        bench.scheduler.reset_prefix_cache()


def test_a_plan_never_gives_a_host_block_away_that_it_uses():
    tier = HostTier(2)
    tier.evicted(b"a", 1)
    tier.take_swaps()

    tier.hold([b"a"])
    answers = [tier.evicted(b"b", 2), tier.evicted(b"c", 3)]
    tier.load([b"a"], [2])
    swaps = tier.take_swaps()

    assert answers == [None, b"c"], "the last one finds no room"
    assert (swaps.out, swaps.back) == ([(2, 1)], [(0, 2)])
    assert tier.evicted(b"d", 4) == b"a", "the least recently used one makes room for the next plan"


def test_the_worker_gets_both_kinds_of_copies_in_columns(bench):
    run(bench, OLD)
    run(bench, NEW)
    bench.add(OLD, max_tokens=1)
    plan = bench.plan()
    plan.new_requests.clear()  # their payload is another matter

    step = encode_plan(plan).step

    assert unpack_u32(step.swap_in.source_block_ids) == [host for host, _ in plan.swaps.back]
    assert unpack_u32(step.swap_in.target_block_ids) == [block for _, block in plan.swaps.back]
    assert unpack_u32(step.swap_out.source_block_ids) == [block for block, _ in plan.swaps.out]


def test_a_block_is_not_saved_by_the_plan_that_writes_it(make_bench):
    """The last chunk of a prompt passes its window; the blocks ahead for the worker's proposals need a block of that window."""
    bench = make_bench(
        num_blocks=10, block_size=4, windows=(5,), num_host_blocks=60, max_num_batched_tokens=16, drafts=WorkerDrafts()
    )
    memory, prompt = WorkerMemory(4, [group_of(5)]), list(range(100, 129))

    def steps(count):
        for _ in range(count):
            if (plan := bench.plan()) is not None:
                assert not memory.run(plan, bench.in_flight[-1][1])
                bench.deliver()

    bench.add(1, max_tokens=8)
    steps(3)
    bench.add(prompt, max_tokens=4)
    steps(2)
    bench.add(prompt[:25], max_tokens=1)
    steps(11)

    assert not bench.scheduler.has_requests


def _next_token(_key, length):
    return 500 + length % 3


@pytest.mark.parametrize(("windows", "num_blocks"), [((None,), 14), ((None, 6), 26), ((None, STATE), 26)], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_walks_read_what_was_written_wherever_it_has_been(make_bench, seed, windows, num_blocks):
    random, groups = Random(seed), [group_of(window) for window in windows]
    bench = make_bench(
        num_blocks=num_blocks, windows=windows, block_size=BLOCK_SIZE,
        num_host_blocks=random.choice([1, 3, 9, 40]) + 2 * (STATE in windows),
        max_num_seqs=4, max_num_batched_tokens=random.choice([5, 16, 64]), policy=random.choice(["fcfs", "priority"]),
        drafts=GuessedDrafts(random, 0 if STATE in windows else random.choice([0, 3]), _next_token, asks_worker=seed % 2 > 0),
    )  # fmt: skip
    bench.next_token = _next_token
    memory, prompts = WorkerMemory(BLOCK_SIZE, groups), [[family * 100 + i for i in range(30)] for family in range(4)]

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
            memory = WorkerMemory(BLOCK_SIZE, groups)
        elif kind < 0.7 and len(bench.in_flight) < 2 and (plan := bench.plan()) is not None:
            assert not memory.run(plan, bench.in_flight[-1][1])
        elif bench.in_flight:
            bench.deliver()
    bench.run()

    tier = bench.scheduler.kv_cache.connector._connectors[0]
    stats = tier.stats()
    assert bench.num_free == num_blocks - 1
    assert stats.num_used + len(tier._free) == stats.num_blocks
    assert stats.num_saved
    assert stats.num_loaded


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


def counts_of(tier):
    return tier.stats().num_saved, tier.stats().num_loaded


def test_copies_are_counted_each_way():
    tier = HostTier(3)
    counts = [counts_of(tier)]
    for number in (1, 2, 3):
        tier.evicted(bytes([number]), number)
    tier.evicted(bytes([1]), 4)  # is here already
    counts.append(counts_of(tier))

    for hashes in ((1,), (2, 3)):
        tier.load([bytes([number]) for number in hashes], [10 + number for number in hashes])
    counts.append(counts_of(tier))

    assert counts == [(0, 0), (3, 0), (3, 3)]


def test_host_blocks_are_used_from_the_first_on_again_after_everything_was_forgotten():
    tier = HostTier(2)
    tier.evicted(b"a", 1)
    tier.take_swaps()

    tier.cleared()
    tier.evicted(b"b", 5)
    tier.evicted(b"c", 6)

    assert tier.take_swaps().out == [(5, 0), (6, 1)]


def test_what_was_evicted_after_the_worker_was_lost_is_told_too(bench):
    events = bench.scheduler.kv_cache.connector._connectors[1]
    bench.scheduler.forget_worker()
    request, _ = run(bench, OLD)
    events.lost.clear()

    for start in (300, 400, 500):
        run(bench, list(range(start, start + 33)))

    assert set(request.block_hashes[:4]) <= set(events.lost)


def test_a_host_without_blocks_keeps_nothing():
    tier = HostTier(0)

    assert tier.evicted(b"a", 1) == b"a"
    assert tier.take_swaps().out == []
