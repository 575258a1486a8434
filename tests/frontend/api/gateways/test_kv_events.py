"""KV events of several engine cores as one stream: ranks, numbers, names of blocks, and the end of one of them."""

import asyncio

import pytest
from smg_grpc_proto.generated import common_pb2

from tetrad.frontend.api.gateways.common.kv_streams import kv_events, merged
from tetrad.frontend.api.gateways.vllm_engine.kv_events import KvEventBatches
from tetrad.services.errors import Unavailable
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2 as pb

CLEARED = pb.KvCacheEvent(cleared=pb.KvBlocksCleared())
STORED = pb.KvCacheEvent(stored=pb.KvBlocksStored(block_hashes=[bytes(32)]))


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


class Cores:
    """Engine cores of ranks 0 and 1, as AsyncLLM shows them; rank 1 ends with `error`, and is then lost unless it `stays`."""

    def __init__(self, error=None, *, absent=(), stays=False):
        self.engine_ranks, self.absent_engine_ranks = [1, 0], frozenset(absent)
        self._error, self._stays = error, stays
        self.engine_admin = self.readiness = self

    def kv_events(self, start):
        assert start == 0
        return [self._ending(), stream_of(told(CLEARED))]

    async def _ending(self):
        yield told(STORED)
        await asyncio.sleep(0)
        if not self._stays:
            self.absent_engine_ranks = frozenset((1,))
        raise self._error

    async def follow(self):
        await asyncio.Event().wait()
        yield


def kinds_of(heard, rank):
    return [event.WhichOneof("event") for each, notice in heard if each == rank for event in notice.events]


async def heard_until_its_end(cores):
    heard = []
    with pytest.raises(Unavailable, match="gone"):
        async for each in kv_events(cores):
            heard.append(each)  # noqa: PERF401 - a comprehension would lose them with the error
    return heard


async def test_the_blocks_of_a_lost_engine_are_cleared_with_its_last_number():
    heard = await heard_until_its_end(Cores(Unavailable("gone")))

    assert kinds_of(heard, 1) == ["stored", "cleared"]
    assert [notice.sequence_number for rank, notice in heard if rank == 1] == [99, 99]


async def test_the_blocks_of_an_engine_whose_events_alone_are_interrupted_stay():
    heard = await heard_until_its_end(Cores(Unavailable("gone"), stays=True))

    assert kinds_of(heard, 1) == ["stored"]


async def test_a_subscription_begins_with_the_end_of_the_blocks_of_absent_engines():
    stream = kv_events(Cores(absent={1}))

    heard = await take(2, stream)
    await stream.aclose()

    assert [(rank, kinds_of([(rank, notice)], rank)) for rank, notice in heard] == [(1, ["cleared"]), (0, ["cleared"])]


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
