"""An engine core's KV events reach the prefix memory, also when connections break."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from tests.frontend.fakes import FakeEngine
from tetrad.frontend.routing import kv_events_client
from tetrad.frontend.routing.block_keys import block_keys, first_parent
from tetrad.frontend.routing.kv_events_client import KvEventsClient
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2 as pb

BLOCK_SIZE, EPOCH = 16, 1
TOKENS = pack_u32(range(3 * BLOCK_SIZE))
KEYS = list(block_keys(TOKENS, BLOCK_SIZE, first_parent("")))
NAMES = [b"a", b"b", b"c"]


@pytest.fixture
def memory():
    memory = PrefixMemory()
    memory.begin(BLOCK_SIZE, 100)
    return memory


@pytest.fixture
async def listener(engine, memory):
    client = KvEventsClient(engine.target, open_channel(engine.target), memory)
    yield client
    await client.close()


def stored(first=0, count=3):
    size = 4 * BLOCK_SIZE
    return pb.KvCacheEvent(
        stored=pb.KvBlocksStored(
            block_hashes=NAMES[first : first + count],
            parent_block_hash=NAMES[first - 1] if first else None,
            token_ids=TOKENS[first * size : (first + count) * size],
            block_size=BLOCK_SIZE,
        )
    )


REMOVED = pb.KvCacheEvent(removed=pb.KvBlocksRemoved(block_hashes=NAMES[1:2]))
CLEARED = pb.KvCacheEvent(cleared=pb.KvBlocksCleared())


def tell(engine, number, *events, snapshot=False):
    engine.kv_batches.put_nowait(pb.SubscribeKvEventsResponse(sequence_number=number, events=events, snapshot=snapshot))


async def until_held(memory, count):
    async with asyncio.timeout(10):
        while memory.num_held(KEYS) != count:  # noqa: ASYNC110 - a memory sends no signal
            await asyncio.sleep(0.005)


async def until_asked(engine, count):
    async with asyncio.timeout(10):
        while len(engine.kv_starts) != count:  # noqa: ASYNC110 - the fake sends no signal
            await asyncio.sleep(0.005)


async def test_what_is_told_is_known(engine, listener, memory):
    listener.follow(EPOCH)

    tell(engine, 5, CLEARED, stored(), snapshot=True)
    await until_held(memory, 3)
    tell(engine, 6, REMOVED)
    await until_held(memory, 1)
    tell(engine, 7, stored(1, 1))
    await until_held(memory, 3)
    tell(engine, 8, CLEARED)
    await until_held(memory, 0)


async def test_a_snapshot_brings_no_new_prefixes(engine, listener, memory):
    """Prefixes in a snapshot do not count as new: a restarted frontend did not cause them."""
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, stored(), snapshot=True)
    await until_held(memory, 3)
    after_snapshot = memory.num_new

    tell(engine, 6, CLEARED)
    await until_held(memory, 0)
    tell(engine, 7, stored())
    await until_held(memory, 3)

    assert (after_snapshot, memory.num_new) == (0, 1)


async def test_a_stream_that_breaks_is_gone_on_with(engine, listener, memory):
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, stored(0, 1), snapshot=True)
    tell(engine, 6, stored(1, 1))
    await until_held(memory, 2)

    engine.kv_batches.put_nowait(None)
    tell(engine, 7, stored(2, 1))
    await until_held(memory, 3)

    assert engine.kv_starts == [0, 7]


async def test_a_stream_that_breaks_in_a_snapshot_is_begun_anew(engine, listener, memory):
    """The rest of the snapshot would be missing, so the client subscribes from the start."""
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, stored(0, 1), snapshot=True)
    await until_held(memory, 1)

    engine.kv_batches.put_nowait(None)
    tell(engine, 5, CLEARED, stored(0, 1), snapshot=True)
    tell(engine, 5, stored(1, 2), snapshot=True)
    await until_held(memory, 3)

    assert engine.kv_starts == [0, 0]


class BytesAsTheyAre(grpc.aio.ServerInterceptor):
    """Lets a method answer with bytes, which need not be a message."""

    async def intercept_service(self, continuation, handler_call_details):
        handler = await continuation(handler_call_details)
        plain = handler.response_serializer
        return handler._replace(response_serializer=lambda each: each if isinstance(each, bytes) else plain(each))


@pytest.fixture
async def blurting(sockets):
    """An engine that can answer with raw bytes."""
    fake = FakeEngine(sockets / "blurting")
    fake.interceptors = (BytesAsTheyAre(),)
    await fake.start()
    yield fake
    await fake.kill()


async def test_what_cannot_be_decoded_is_not_the_end(blurting, memory):
    listener = KvEventsClient(blurting.target, open_channel(blurting.target), memory)
    with capture_logs() as logs:
        listener.follow(EPOCH)
        tell(blurting, 5, CLEARED, stored(0, 1), snapshot=True)
        await until_held(memory, 1)

        blurting.kv_batches.put_nowait(b"\xff")
        await until_asked(blurting, 2)
        tell(blurting, 9, CLEARED, stored(), snapshot=True)
        await until_held(memory, 3)
    await listener.close()

    assert blurting.kv_starts == [0, 0]
    assert "kv_events.undecodable" in [line["event"] for line in logs]


async def test_a_bug_behind_an_event_is_logged_and_not_the_end(engine, listener, memory, monkeypatch):
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(memory, "clear", lambda: 1 / 0)
        listener.follow(EPOCH)
        tell(engine, 5, CLEARED, snapshot=True)
        await until_asked(engine, 2)
    tell(engine, 9, CLEARED, stored(), snapshot=True)
    await until_held(memory, 3)

    assert [line["event"] for line in logs] == ["kv_events.failed"]


async def test_a_gap_is_not_believed(engine, listener, memory):
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, snapshot=True)
    tell(engine, 7, stored())
    await until_asked(engine, 2)

    assert memory.num_held(KEYS) == 0
    assert engine.kv_starts == [0, 0]


async def test_a_snapshot_in_between_takes_the_place_of_what_was_known(engine, listener, memory):
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, stored(), snapshot=True)
    await until_held(memory, 3)

    tell(engine, 90, CLEARED, stored(0, 1), snapshot=True)
    await until_held(memory, 1)
    tell(engine, 91, stored(1, 1))
    await until_held(memory, 2)

    assert engine.kv_starts == [0]


async def test_the_events_of_another_engine_core_are_not_taken(engine, listener, memory, monkeypatch):
    monkeypatch.setattr(kv_events_client, "_WRONG_AFTER_S", 0.1)
    tell(engine, 5, stored(), snapshot=True)

    with capture_logs() as logs:
        listener.follow(EPOCH + 1)
        async with asyncio.timeout(10):
            while not logs:  # noqa: ASYNC110 - a log sends no signal
                await asyncio.sleep(0.005)

    assert [line["event"] for line in logs] == ["kv_events.wrong_engine"]
    assert (engine.kv_starts, len(memory)) == ([], 0)


async def test_a_successor_that_answers_before_its_session_is_open_is_no_wrong_order(engine, listener, memory):
    tell(engine, 5, CLEARED, stored(), snapshot=True)

    with capture_logs() as logs:
        listener.follow(EPOCH - 1)
        await asyncio.sleep(0.3)
        listener.follow(EPOCH)
        await until_held(memory, 3)

    assert not logs


async def test_an_engine_core_in_its_place_is_listened_to_from_the_beginning(sockets, engine, listener, memory):
    listener.follow(EPOCH)
    tell(engine, 5, CLEARED, stored(), snapshot=True)
    await until_held(memory, 3)

    await engine.kill()
    await engine.start()
    memory.begin(BLOCK_SIZE, 100)
    listener.follow(EPOCH + 1)
    tell(engine, 9, CLEARED, stored(0, 1), snapshot=True)
    await until_held(memory, 1)

    assert engine.kv_starts[-1] == 0
