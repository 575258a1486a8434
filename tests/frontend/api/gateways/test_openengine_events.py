"""openengine.v1.Control: the events of prefix caches."""

import asyncio

import grpc
import pytest

from tests.frontend.api.gateways.calls import refusal_of
from tetrad.openengine_api import common_pb2, control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc, kv_events_pb2
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2


def told(number, *events, snapshot=False):
    return engine_core_pb2.SubscribeKvEventsResponse(
        sequence_number=number, events=events, snapshot=snapshot, timestamp_unix_s=1.5
    )


CLEARED = engine_core_pb2.KvCacheEvent(cleared=engine_core_pb2.KvBlocksCleared())
STORED = engine_core_pb2.KvCacheEvent(
    stored=engine_core_pb2.KvBlocksStored(
        block_hashes=[b"b" * 32, b"c" * 32],
        parent_block_hash=b"a" * 32,
        token_ids=pack_u32(range(8)),
        block_size=4,
        lora_name="sql",
        medium="GPU",
        group_index=1,
        cache_salt="salt",
        sliding_window=64,
    )
)
REMOVED = engine_core_pb2.KvCacheEvent(removed=engine_core_pb2.KvBlocksRemoved(block_hashes=[b"b" * 32], medium="CPU"))


async def take(number, call):
    return [(await call.read()).batch for _ in range(number)]


async def test_events_have_the_numbers_and_the_names_of_the_engine_core(control, engine):
    for each in (told(4, CLEARED, snapshot=True), told(5, STORED, REMOVED)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True, start_sequence_number=5))
    snapshot, change = await take(2, call)
    call.cancel()

    assert (snapshot.sequence_number, change.sequence_number, change.data_parallel_rank) == (4, 5, 0)
    assert (snapshot.timestamp_unix_nanos, engine.kv_starts[-1]) == (1_500_000_000, 0)
    assert snapshot.events[0].HasField("all_blocks_cleared")
    stored, removed = change.events[0].block_stored, change.events[1].block_removed
    assert [(each.value, each.encoding) for each in stored.block_hashes] == [(b"b" * 32, "bytes"), (b"c" * 32, "bytes")]
    assert (stored.parent_block_hash.value, list(stored.token_ids), stored.block_size) == (b"a" * 32, list(range(8)), 4)
    assert (stored.lora_name, stored.medium, stored.group_idx) == ("sql", kv_events_pb2.STORAGE_MEDIUM_GPU, 1)
    assert len(stored.extra_keys) == 0  # the salt is a key of the block that begins the sequence
    assert stored.kv_cache_spec_sliding_window == 64
    assert (removed.block_hashes[0].value, removed.medium) == (b"b" * 32, kv_events_pb2.STORAGE_MEDIUM_CPU_PINNED)


async def test_the_salt_is_a_key_of_the_block_that_begins_a_sequence(control, engine):
    begins = engine_core_pb2.KvCacheEvent()
    begins.CopyFrom(STORED)
    begins.stored.ClearField("parent_block_hash")
    engine.kv_batches.put_nowait(told(5, begins))

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    [batch] = await take(1, call)
    call.cancel()

    assert [list(each.values) for each in batch.events[0].block_stored.extra_keys] == [["salt"], []]


async def test_without_a_snapshot_events_begin_with_the_next_change_and_later_snapshots_are_sent(control, engine):
    first = [told(4, CLEARED, snapshot=True), told(4, STORED, snapshot=True), told(5, STORED)]
    for each in (*first, told(9, CLEARED, snapshot=True)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest())
    numbers = [batch.sequence_number for batch in await take(2, call)]
    call.cancel()

    assert numbers == [5, 9]


async def test_events_are_replayed_from_a_number(control, engine):
    for each in (told(7, STORED), told(8, REMOVED)):
        engine.kv_batches.put_nowait(each)

    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(data_parallel_ranks=[0], start_sequence_number=7))
    numbers = [batch.sequence_number for batch in await take(2, call)]
    call.cancel()

    assert (numbers, engine.kv_starts[-1]) == ([7, 8], 7)


async def test_ranks_of_events_and_loads_are_those_that_requests_are_pinned_to(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    first.load_fields, second.load_fields = {"num_gpu_blocks": 10}, {"num_gpu_blocks": 20}
    first.kv_batches.put_nowait(told(10, CLEARED, snapshot=True))
    second.kv_batches.put_nowait(told(20, CLEARED, snapshot=True))
    stub = control_pb2_grpc.ControlStub(channel)

    wanted = kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True, data_parallel_ranks=[0])
    call = stub.SubscribeKvEvents(wanted)
    [batch] = await take(1, call)
    call.cancel()
    load = await stub.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))
    wanted.data_parallel_ranks[:] = [2]
    refused = await refusal_of(stub.SubscribeKvEvents(wanted).read())
    pinned = inference_pb2_grpc.InferenceStub(channel).Generate(
        inference_pb2.GenerateRequest(prompt="hi"), metadata=(("openengine-target-dp-rank", "0"),)
    )
    assert [event async for event in pinned]

    assert (batch.sequence_number, batch.data_parallel_rank) == (10, 0)
    assert [(rank.data_parallel_rank, rank.total_kv_blocks) for rank in load.ranks] == [(0, 10), (1, 20)]
    assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "data_parallel_ranks")
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_a_lost_engine_core_keeps_no_events_of_the_others_back(rank_1_and_0):
    [second, first], channel = rank_1_and_0
    stub = control_pb2_grpc.ControlStub(channel)
    await second.kill()
    async with asyncio.timeout(10):
        while len((await stub.GetLoad(control_pb2.GetLoadRequest(include_per_rank=True))).ranks) == 2:
            pass
    first.kv_batches.put_nowait(told(10, CLEARED, snapshot=True))

    call = stub.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    lost, batch = await take(2, call)
    await second.start()
    last = await call.read()

    assert (lost.data_parallel_rank, batch.data_parallel_rank) == (1, 0)
    assert [event.WhichOneof("event") for event in lost.events] == ["all_blocks_cleared"]
    assert (last.error.retryable, last.error.message) == (True, "An engine core has joined; subscribe again.")


async def test_a_rank_that_does_not_exist_is_refused(control):
    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(data_parallel_ranks=[1]))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()

    assert from_rpc_error(caught.value).field == "data_parallel_ranks"


async def test_the_loss_of_an_engine_core_is_the_last_event(control, engine):
    engine.kv_batches.put_nowait(told(1, CLEARED, snapshot=True))
    call = control.SubscribeKvEvents(kv_events_pb2.SubscribeKvEventsRequest(include_snapshot=True))
    await take(1, call)

    await engine.kill()
    last = await call.read()
    if last.HasField("batch"):  # that clears the blocks, if the loss of the engine core is known already
        last = await call.read()

    assert (last.error.code, last.error.retryable) == (common_pb2.ERROR_CODE_INTERNAL, True)
    assert await call.code() == grpc.StatusCode.OK
