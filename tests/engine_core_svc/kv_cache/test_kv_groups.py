"""KV groups: blocks freed behind a sliding window, prefixes common to all groups, and blocks that a sequence needs."""

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK
from tetrad.engine_core_svc.kv_cache.coordinator import UnitaryCoordinator
from tetrad.engine_core_svc.kv_cache.event_log import KvEventLog
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.services.errors import FailedPrecondition

BLOCK_SIZE = 4
PROMPT = list(range(100, 140))
"""Ten blocks."""
FULL_AND_WINDOW = (None, 9)
"""A window of 9 tokens needs the last two blocks of a prefix."""


@pytest.fixture
def bench(make_bench):
    return make_bench(block_size=BLOCK_SIZE, num_blocks=60, windows=FULL_AND_WINDOW, max_num_batched_tokens=16)


def run(bench, prompt, max_tokens=1):
    request = bench.add(prompt, max_tokens=max_tokens)
    bench.run()
    return request


def lose(bench, request, group, *indices):
    """Evict blocks of a request that has ended from a group's cache."""
    suffix = group.to_bytes(4, "big") if group else b""
    for index in indices:
        bench.scheduler.kv_cache.pool.forget(request.block_hashes[index] + suffix)


def test_a_model_whose_layers_see_all_keys_pays_for_no_groups(make_bench):
    assert isinstance(make_bench().scheduler.kv_cache.coordinator, UnitaryCoordinator)


def test_blocks_behind_the_window_are_freed_while_the_prompt_is_computed(bench):
    request = bench.add([*PROMPT, 1])

    held = []
    for _ in range(3):
        bench.step()
        full, window = request.block_tables
        held.append((len(full), sum(block != NULL_BLOCK for block in window)))

    # Before the third step, whose first token is number 32, blocks 0 to 5 (tokens up to 23) are passed.
    assert held == [(4, 4), (8, 6), (11, 5)]
    assert request.block_tables[1][:7] == [NULL_BLOCK] * 6 + [request.block_tables[1][6]]
    assert bench.scheduler.kv_cache.coordinator.num_passed == 6
    assert bench.num_free == 59 - 11 - 5


def test_a_long_answer_holds_no_more_than_a_window(make_bench):
    """Eight blocks are enough for 200 tokens, where keeping all would take 51."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=9, windows=(9,), max_num_batched_tokens=16, max_num_seqs=1)

    request = run(bench, 4, max_tokens=200)

    assert (request.num_output_tokens, request.num_preemptions) == (200, 0)
    assert bench.scheduler.kv_cache.coordinator.num_passed == 48


def test_counts_since_start_survive_a_lost_worker(bench):
    for first in range(0, 400, 40):
        run(bench, range(first, first + 40))
    kv_cache = bench.scheduler.kv_cache

    def counts():
        return kv_cache.pool.num_cached, kv_cache.pool.num_evicted, kv_cache.coordinator.num_passed

    before = counts()
    bench.scheduler.forget_worker()

    assert all(before)
    assert counts() == before
    assert (kv_cache.pool.num_free_cached, bench.num_free) == (0, 59)


def test_what_a_window_has_passed_serves_other_requests_at_once(make_bench):
    """Two sequences of 60 tokens decode side by side in a pool that holds one of them whole."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=16, windows=(9,), max_num_batched_tokens=8)
    requests = [bench.add(8, max_tokens=52) for _ in range(2)]

    bench.run(depth=2)

    assert [request.num_preemptions for request in requests] == [0, 0]


def test_a_prefix_needs_only_the_last_blocks_of_a_window(bench):
    first = run(bench, [*PROMPT, 1])
    lose(bench, first, 1, *range(8))

    second = bench.add([*PROMPT, 2], max_tokens=1)
    bench.plan()

    assert second.num_cached_tokens == 40
    full, window = second.block_tables
    assert window[:8] == [NULL_BLOCK] * 8
    assert NULL_BLOCK not in [*full, *window[8:]]


@pytest.mark.parametrize(
    ("group", "lost", "num_cached"),
    [(0, [3], 12), (0, [9], 36), (1, [9], 36), (1, [8], 32), (1, [8, 6], 24), (1, [9, 8, 7, 5, 3, 1], 4), (1, range(10), 0)],
    ids=str,
)
def test_a_prefix_is_as_long_as_all_groups_have_it(bench, group, lost, num_cached):
    first = run(bench, [*PROMPT, 1])
    lose(bench, first, group, *lost)

    second = bench.add([*PROMPT, 2], max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == num_cached


def test_windows_of_different_sizes_shorten_each_others_prefix(make_bench):
    """The wide window lacks block 7, so the prefix ends there; the narrow one lacks block 6, which that prefix needs."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(5, 13, None))
    first = run(bench, [*PROMPT, 1])
    lose(bench, first, 1, 7)
    lose(bench, first, 0, 6)

    second = bench.add([*PROMPT, 2], max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == 24


def test_the_blocks_of_one_group_are_never_found_by_another(bench):
    first = run(bench, [*PROMPT, 1])
    hashes, pool = first.block_hashes, bench.scheduler.kv_cache.pool

    found = [pool.find(block_hash + suffix) for block_hash in hashes for suffix in (b"", (1).to_bytes(4, "big"))]

    assert len(set(found)) == 2 * len(hashes)


def test_events_tell_of_the_first_groups_blocks(make_bench):
    log = KvEventLog(BLOCK_SIZE, epoch=0)
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=26, windows=FULL_AND_WINDOW, connector=log, max_num_batched_tokens=16)
    first = run(bench, [*PROMPT, 1])

    assert set(log._cached) == set(first.block_hashes)

    other = run(bench, 41)
    pool = bench.scheduler.kv_cache.pool
    assert set(log._cached) == {name for name in (*first.block_hashes, *other.block_hashes) if pool.find(name) is not None}
    assert not set(first.block_hashes) <= set(log._cached)


def test_a_passed_block_comes_back_from_the_second_tier(make_bench):
    bench = make_bench(
        block_size=BLOCK_SIZE, num_blocks=26, windows=FULL_AND_WINDOW, num_host_blocks=60, max_num_batched_tokens=16
    )
    run(bench, [*PROMPT, 1])
    run(bench, 60)

    second = bench.add([*PROMPT[:24], 2], max_tokens=1)
    plan = bench.plan()

    assert second.num_cached_tokens == 24
    full, window = plan.new_requests[0].block_tables
    assert {block for _, block in plan.swaps.back} == {*full[:6], *window[4:6]}


@pytest.mark.parametrize(
    ("windows", "num_blocks"), [((None,), 512), ((9,), 515 // 4 + 1), ((None, 9, 9), 512 + 2 * (515 // 4 + 1))], ids=str
)
def test_a_layout_holds_one_sequence_of_the_full_length(windows, num_blocks):
    settings = EngineCoreSettings(block_size=4, max_num_batched_tokens=504, max_num_seqs=1)
    groups = [KvGroup(window) for window in windows]

    layout = plan_layout(
        settings, block_size_bytes=1 << 10, available_bytes=1 << 30, max_position_embeddings=2048, groups=groups
    )

    assert layout.num_blocks == num_blocks + 1
    assert layout.num_tokens == 2048


def test_a_context_of_full_length_that_fits_no_memory_is_shortened_by_what_groups_hold():
    """100 blocks: a window of 9 and a step of 24 tokens hold 9 blocks, so 91 are left for the other group."""
    settings = EngineCoreSettings(block_size=4, max_num_batched_tokens=24, max_model_len="auto")
    groups = [KvGroup(), KvGroup(9)]

    layout = plan_layout(
        settings, block_size_bytes=1 << 10, available_bytes=101 << 10, max_position_embeddings=2048, groups=groups
    )

    assert layout.max_model_len == 4 * 91


def test_the_longest_sequence_of_a_window_alone_is_not_bounded_by_memory():
    layout = plan_layout(
        EngineCoreSettings(block_size=4, max_num_batched_tokens=24),
        block_size_bytes=1 << 10, available_bytes=10 << 10, max_position_embeddings=1 << 20, groups=[KvGroup(9)],
    )  # fmt: skip

    assert layout.max_model_len == 1 << 20


def test_blocks_that_hold_no_window_are_refused():
    with pytest.raises(FailedPrecondition, match=r"5 KV blocks of 4 tokens hold one sequence of 16 tokens"):
        plan_layout(
            EngineCoreSettings(block_size=4, max_num_batched_tokens=24, num_gpu_blocks_override=5, max_model_len=64),
            block_size_bytes=1 << 10, available_bytes=1 << 30, max_position_embeddings=2048, groups=[KvGroup(9)],
        )  # fmt: skip
