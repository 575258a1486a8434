"""KV events of several engine cores as one stream: ranks, numbers, names of blocks, and the end of one of them."""

import asyncio

import pytest
from smg_grpc_proto.generated import common_pb2

from tetrad.frontend.api.gateways.common.kv_streams import merged
from tetrad.frontend.api.gateways.vllm_engine.kv_events import KvEventBatches
from tetrad.services.errors import Unavailable
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2 as pb

CLEARED = pb.KvCacheEvent(cleared=pb.KvBlocksCleared())


async def stream_of(*batches, then=None):
    for batch in batches:
        yield batch
    if then is not None:
        raise then
    await asyncio.Event().wait()


def told(*events):
    return pb.SubscribeKvEventsResponse(events=events, sequence_number=99)


async def take(number, stream):
    return [await anext(stream) for _ in range(number)]


async def test_every_engine_is_heard_as_its_rank():
    stream = merged([stream_of(told(CLEARED)), stream_of(told(CLEARED), told())])

    heard = await take(3, stream)
    await stream.aclose()

    assert sorted(rank for rank, _ in heard) == [0, 1, 1]


async def test_the_end_of_one_engine_is_the_end_of_all():
    stream = merged([stream_of(told(CLEARED)), stream_of(then=Unavailable("gone"))])

    with pytest.raises(Unavailable, match="gone"):
        await take(3, stream)


def test_numbers_go_on_from_what_is_asked_for_and_each_rank_has_its_own():
    batches = KvEventBatches(40)

    numbers = [(batches.of(rank, told()).sequence_number, rank) for rank in (0, 0, 1, 0)]

    assert numbers == [(40, 0), (41, 0), (40, 1), (42, 0)]
    assert KvEventBatches(0).of(0, told()).sequence_number == 1


def test_a_run_of_blocks_is_told_block_by_block_with_short_names():
    names = [bytes([first]) + bytes(31) for first in (1, 2, 3)]
    run = pb.KvBlocksStored(block_hashes=names[1:], parent_block_hash=names[0], token_ids=pack_u32(range(8)), block_size=4)
    removed = pb.KvBlocksRemoved(block_hashes=[b"\xff" * 32])

    batch = KvEventBatches(0).of(0, told(pb.KvCacheEvent(stored=run), pb.KvCacheEvent(removed=removed), CLEARED))

    stored = batch.events[0].stored
    assert [(block.block_hash, list(block.token_ids)) for block in stored.blocks] == [(2, [0, 1, 2, 3]), (3, [4, 5, 6, 7])]
    assert (stored.parent_block_hash, stored.tier) == (1, common_pb2.KV_CACHE_TIER_DEVICE)
    assert list(batch.events[1].removed.block_hashes) == [-1]
    assert batch.events[2].HasField("cleared")


def test_blocks_name_the_adapter_and_the_salt_that_they_belong_to():
    """Equal tokens of the base model and of an adapter, or of two salts, are different blocks: the gateway must know."""
    run = pb.KvBlocksStored(
        block_hashes=[bytes(32)], token_ids=pack_u32(range(4)), block_size=4, lora_name="sql", cache_salt="a"
    )
    plain = pb.KvBlocksStored(block_hashes=[bytes(32)], token_ids=pack_u32(range(4)), block_size=4)

    batch = KvEventBatches(0).of(0, told(pb.KvCacheEvent(stored=run), pb.KvCacheEvent(stored=plain)))

    named, unnamed = (event.stored for event in batch.events)
    assert (named.lora_name, named.cache_salt) == ("sql", "a")
    assert not unnamed.HasField("lora_name")
    assert not unnamed.HasField("cache_salt")
