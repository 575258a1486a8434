"""State groups: a request holds its last state, a prefix ends at a kept state, and no plan reads a state that it writes."""

import pytest

from tests.engine_core_svc.kv_cache.worker_memory import STATE
from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts, WorkerDrafts
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.kv_groups import KvGroup
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK
from tetrad.engine_core_svc.worker.kv_groups_wire import decode_groups, tokens_per_block
from tetrad.engine_core_svc.worker.kv_layout import plan_layout
from tetrad.v1 import types_pb2, worker_pb2

BLOCK_SIZE = 4
PROMPT = list(range(100, 140))
"""Ten blocks."""


def held(request, group):
    return [index for index, block in enumerate(request.block_tables[group]) if block != NULL_BLOCK]


@pytest.mark.parametrize("caching", [True, False])
def test_a_request_holds_its_last_state_however_its_prompt_is_cut(make_bench, caching):
    bench = make_bench(
        block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE), max_num_batched_tokens=18, enable_caching=caching
    )
    request = bench.add([*PROMPT, 1], max_tokens=30)

    states = []
    for _ in range(3):
        bench.step()
        states.append(held(request, 1))
    for _ in range(20):
        bench.step()

    assert [indices[-1] for indices in states] == [4, 8, 10]
    assert all(len(indices) <= 2 for indices in states)
    assert len(held(request, 1)) <= 2
    assert len(held(request, 0)) == 16


def test_a_plan_keeps_the_state_at_every_full_block_for_the_prefix_cache(make_bench):
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(STATE,))
    bench.add([*PROMPT, 1], max_tokens=1)

    plan = bench.plan()

    [table] = plan.new_requests[0].block_tables
    assert NULL_BLOCK not in table
    assert bench.num_free == 89 - 1, "the others are free once the plan is sent"


@pytest.mark.parametrize("num_shared", [40, 24, 7, 3])
def test_a_prefix_ends_at_the_last_full_block_that_two_prompts_share(make_bench, num_shared):
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE))
    bench.add([*PROMPT, 1], max_tokens=1)
    bench.run()

    second = bench.add([*PROMPT[:num_shared], 2, 3], max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == num_shared // BLOCK_SIZE * BLOCK_SIZE


def test_what_a_request_generates_is_a_prefix_too(make_bench):
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE))
    first = bench.add(PROMPT, max_tokens=14)
    bench.run(depth=2)

    second = bench.add([*first.token_ids, 7], max_tokens=1)
    bench.step()

    assert second.num_cached_tokens == 52


def test_states_are_not_found_in_the_plan_that_writes_them(make_bench):
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE))
    requests = [bench.add([*PROMPT, last], max_tokens=1) for last in (1, 2)]

    plan = bench.plan()

    assert [new.key for new in plan.new_requests] == [request.key for request in requests]
    assert [new.num_computed_tokens for new in plan.new_requests] == [0, 0]


def test_states_are_kept_only_where_blocks_are_free(make_bench):
    """One block of keys and one of states a group are left over: 200 tokens of two requests run without a preemption."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=8, windows=(STATE,), max_num_batched_tokens=64, max_num_seqs=1)

    requests = [bench.add(60, max_tokens=40), bench.add(60, max_tokens=40)]
    bench.run(depth=2)

    assert [(request.num_output_tokens, request.num_preemptions) for request in requests] == [(40, 0), (40, 0)]


def test_a_layout_holds_a_sequence_of_any_length_in_few_blocks():
    layout = plan_layout(
        EngineCoreSettings(block_size=16, max_num_seqs=4), block_size_bytes=1 << 20, available_bytes=1 << 30,
        max_position_embeddings=1 << 17, groups=[KvGroup(is_state=True)] * 2, block_size=256,
    )  # fmt: skip

    assert (layout.num_blocks, layout.block_size, layout.max_model_len) == (4 * 2 * 2 + 1, 256, 1 << 17)


def test_blocks_that_have_to_hold_a_state_are_of_the_size_that_the_worker_says():
    groups = [
        worker_pb2.KvCacheGroup(kind=types_pb2.KV_CACHE_KIND_FULL_ATTENTION, block_size=816),
        worker_pb2.KvCacheGroup(kind=types_pb2.KV_CACHE_KIND_STATE, block_size=816),
    ]

    assert tokens_per_block(groups, 16) == 816
    assert decode_groups(groups, 816) == (KvGroup(), KvGroup(is_state=True))


@pytest.mark.parametrize(("num_prompt_tokens", "num_drafts"), [(3, 0), (4, 3), (6, 1), (7, 0)])
def test_drafts_stay_in_the_block_of_the_last_known_token(make_bench, num_prompt_tokens, num_drafts):
    """The step after the prompt computes one token more; a block has 4."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE), drafts=SameDrafts(1, 2, 3, 4, 5))
    request = bench.add(num_prompt_tokens)
    bench.step()

    assert len(bench.plan().draft_tokens.get(request.key, ())) == num_drafts


def test_drafts_without_states_may_begin_blocks(make_bench):
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, drafts=SameDrafts(1, 2, 3, 4, 5))
    request = bench.add(BLOCK_SIZE)
    bench.step()

    assert len(bench.plan().draft_tokens[request.key]) == 5 > BLOCK_SIZE


def test_a_plan_that_asks_for_drafts_allocates_no_block_beyond_that_of_the_state(make_bench):
    """The block of a full state would be freed as one that only the prefix cache needs, before the next plan reads it."""
    bench = make_bench(block_size=BLOCK_SIZE, num_blocks=90, windows=(None, STATE), drafts=WorkerDrafts())
    request = bench.add(PROMPT[:6], max_tokens=12)

    while not request.is_finished:
        bench.step()
        for group in (0, 1) if request.block_tables else ():
            assert len(request.block_tables[group]) == -(-request.num_computed_tokens // BLOCK_SIZE)

    assert request.num_output_tokens == 12
