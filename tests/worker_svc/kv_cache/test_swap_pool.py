"""Blocks that are copied to host memory and back: the same bytes, of any type, in the plan's order."""

import numpy as np
import pytest
import torch

from tests.worker_svc.service_client import error_of, new, step
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import CachedRequests, SchedulerOutput
from tetrad.worker_svc.kv_cache import swap_pool
from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.kv_cache.swap_pool import SwapPool

NONE = np.empty(0, np.int64)
DTYPES = [torch.float32, torch.float16, torch.float8_e4m3fn]


def ids(*numbers):
    return np.array(numbers, np.int64)


def plan(**moves):
    return SchedulerOutput(1, [], CachedRequests(NONE, NONE, NONE, NONE, NONE), **moves)


def filled(dtype=torch.float32, *, is_by_block=False, **sizes):
    spec = KvCacheSpec(group_layers([None] * 3), 2, 4, dtype, is_by_block)
    cache = KvCache(spec, **{"num_blocks": 9, "block_size": 2, "num_host_blocks": 5, **sizes})
    for number, layer in enumerate(cache.layers):
        layer.copy_((torch.arange(layer.numel()) % 61 + number).view(layer.shape).to(dtype))
    return cache


def blocks(cache, *numbers):
    return [layer[list(numbers)].float().clone() for layer in cache.layers]


def clear(cache, *numbers):
    for layer in cache.layers:
        layer[list(numbers)] = torch.zeros_like(layer[list(numbers)])


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_by_block", [False, True])
def test_blocks_come_back_to_other_places_with_all_their_layers(dtype, is_by_block):
    cache = filled(dtype, is_by_block=is_by_block)
    before, others = blocks(cache, 3, 7), blocks(cache, 1, 2, 4, 5)

    cache.move(plan(swap_out=(ids(3, 7), ids(4, 0))))
    clear(cache, 3, 7)
    cache.move(plan(swap_in=(ids(4, 0), ids(8, 6))))

    assert same(blocks(cache, 8, 6), before)
    assert same(blocks(cache, 1, 2, 4, 5), others)


def test_one_plan_may_fill_the_place_that_a_block_leaves_and_read_what_it_just_moved():
    cache = filled()
    first, second = blocks(cache, 1), blocks(cache, 2)
    cache.move(plan(swap_out=(ids(1), ids(3))))

    cache.move(plan(swap_out=(ids(2), ids(0)), swap_in=(ids(3, 0), ids(2, 5))))

    assert same(blocks(cache, 2), first)
    assert same(blocks(cache, 5), second)


def test_many_blocks_and_many_slabs_are_as_one(monkeypatch):
    monkeypatch.setattr(swap_pool, "_SLAB_BYTES", 500)  # a block has 192 bytes
    cache = filled(num_blocks=80, num_host_blocks=71)
    everything, order = blocks(cache, *range(1, 72)), np.random.default_rng(1).permutation(71)

    cache.move(plan(swap_out=(np.arange(1, 72), order)))
    clear(cache, *range(80))
    cache.move(plan(swap_in=(order, np.arange(1, 72))))

    assert same(blocks(cache, *range(1, 72)), everything)


@pytest.mark.parametrize(("block_bytes", "at_once"), [(1 << 10, 32), (1 << 22, 8), (1 << 28, 1)])
def test_what_is_gathered_at_the_same_time_is_bounded_in_blocks_and_in_bytes(block_bytes, at_once):
    assert swap_pool.blocks_at_once(block_bytes) == at_once


def test_a_block_s_pages_of_all_layers_lie_together_if_asked():
    layers = filled(is_by_block=True).layers

    page_bytes = layers[0][0].nbytes
    assert [layer.data_ptr() - layers[0].data_ptr() for layer in layers] == [0, page_bytes, 2 * page_bytes]


def test_a_pool_that_the_host_cannot_hold_is_refused_with_the_numbers():
    with pytest.raises(FailedPrecondition, match=r"\(swap_space\) of num_host_blocks 1000000000000 needs \d+ bytes; \d+ are"):
        SwapPool([torch.zeros(2, 64)], 10**12)


@pytest.mark.parametrize("name", ["swap_out", "swap_in"])
async def test_a_host_block_that_does_not_exist_ends_the_stream(client, tiny_llama, name):
    await client.load(tiny_llama[0])
    assert (await client.initialize(num_host_blocks=4)).num_host_blocks == 4
    stream = await client.open_stream()
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    copies = worker_pb2.BlockCopies(source_block_ids=pack_u32([4]), target_block_ids=pack_u32([4]))
    getattr(message.step, name).CopyFrom(copies)
    await stream.write(message)

    error = await error_of(stream.read())

    assert error.message == "Host block 4 does not exist; the second tier has 4 blocks."


def test_every_device_s_runner_has_the_pool_that_the_layout_says(tiny, make_driver):
    sizes = {"num_blocks": 20, "block_size": 16, "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    driver = make_driver(tiny, KvLayout(**sizes, num_host_blocks=3))
    prompt = list(range(5, 40))
    driver.add(1, prompt)
    [expected] = driver.generate(5).values()
    first = driver.remove(1)

    driver.add(2, prompt, shared=[17, 18], computed=32)
    moves = {"swap_out": (ids(*first.blocks[:2]), ids(2, 0)), "swap_in": (ids(2, 0), ids(17, 18))}
    driver.step({2: 3}, **moves)

    assert driver.generate(5)[2] == expected
