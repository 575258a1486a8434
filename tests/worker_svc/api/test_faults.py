"""Faulty callers of the worker: stale and second engine cores, invalid plans and layouts, devices that hang."""

import asyncio
import threading

import grpc
import pytest

from tests.worker_svc.service_client import connect, error_of, new, read_tokens, step
from tetrad.services.errors import Code, FailedPrecondition, InternalError, InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import worker_pb2


async def test_new_stream_supersedes_the_old_one(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    old = await client.open_stream()
    await old.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await read_tokens(old)

    young = await client.open_stream()
    await young.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(young))[1]
    error = await error_of(old.read())
    await young.write(step(2, cached=[(3, 3)]))

    assert isinstance(error, FailedPrecondition)
    assert 3 in (await read_tokens(young))[1]


async def test_an_older_engine_core_is_refused_while_a_newer_one_has_the_worker(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    newer = await client.open_stream(epoch=20)

    error = await error_of(client.open_stream(epoch=19))

    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, "STALE_EPOCH")
    assert (await client.info()).epoch == 20
    await newer.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(newer))[1]
    await newer.done_writing()
    await newer.read()
    await client.open_stream(epoch=19)


async def test_an_engine_core_without_work_hears_of_its_successor(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    idle = await client.open_stream(epoch=1)

    await client.open_stream(epoch=2)

    assert (await error_of(idle.read())).reason == "STALE_EPOCH"


def with_swaps(sources, targets):
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    message.step.swap_in.source_block_ids = pack_u32(sources)
    message.step.swap_in.target_block_ids = pack_u32(targets)
    return message


def with_unread(**fields):
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    message.step.MergeFrom(worker_pb2.SchedulerOutput(**fields))
    return message


def with_mask(num_words):
    message = step(1, new_requests=[new(3, [5, 6, 7], 1)])
    mask = worker_pb2.GrammarBitmask(handles=pack_u32([3]), bitmask=pack_u32([1] * num_words), num_words=num_words)
    message.step.grammar_bitmask.CopyFrom(mask)
    return message


def with_ragged_column():
    message = step(1, cached=[(3, 3)])
    message.step.cached_requests.handles = b"123"
    return message


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (step(1, new_requests=[new(3, [5, 6, 7], 50)]), "Block 50 does not exist; the KV cache has 50 blocks"),
        (with_swaps([], [4_000_000_000]), "copies 0 blocks to 1"),
        (with_swaps([1], [3]), "Host block 1 does not exist; the second tier has 0 blocks"),
        (with_unread(block_ids_to_zero=pack_u32([7])), "does not support block_ids_to_zero"),
        (with_unread(block_copies=worker_pb2.BlockCopies()), "does not support block_copies"),
        (with_mask(3), "Masks have 3 words; this vocabulary needs 10"),
        (with_ragged_column(), "cannot have 3 bytes"),
        (step(1, new_requests=[new(3, [5] * 257, 1)]), "has 257 tokens; the worker was set up for 256"),
        (step(1, new_requests=[new(n, [5], 1) for n in range(9)]), "set up for 8 requests; none more fits"),
        (step(1, new_requests=[new(3, [5], 1), new(3, [5], 2)]), "Handle 3 is in use"),
        (step(1, cached=[(9, 3)]), "no request with handle 9"),
        (worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello()), "every message of an Execute stream is a step"),
        (worker_pb2.ExecuteRequest(), "every message of an Execute stream is a step"),
    ],
)
async def test_a_plan_that_makes_no_sense_ends_the_stream_and_nothing_else(client, tiny_llama, plan, text):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    await stream.write(plan)

    error = await error_of(stream.read())

    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "INVALID_PLAN")
    assert text in error.message
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_bytes_that_are_no_plan_end_the_stream_and_nothing_else(client, tiny_llama):
    await client.get_ready(tiny_llama[0])
    raw = client.channel.stream_stream("/tetrad.v1.WorkerService/Execute")()
    hello = worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=1))
    await raw.write(hello.SerializeToString())
    await raw.read()
    await raw.write(b"\xff\xff\xff\xff")

    await error_of(raw.read())

    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_device_failure_ends_the_stream_and_the_next_one_works(client, tiny_llama, monkeypatch):
    await client.get_ready(tiny_llama[0])
    stream = await client.open_stream()
    runner = client.served.worker.cache.runner
    monkeypatch.setattr(runner, "_forward", lambda inputs: 1 / 0)
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    await stream.write(step(2, cached=[(3, 3)]))

    error = await error_of(stream.read())

    assert (error.code, error.reason) == (Code.INTERNAL, "STEP_FAILED")
    monkeypatch.undo()
    stream = await client.open_stream()
    await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
    assert 3 in (await read_tokens(stream))[1]


async def test_a_step_that_outlives_its_stream_for_too_long_means_a_stuck_device(tmp_path, tiny_llama, monkeypatch):
    begun, end = threading.Event(), threading.Event()
    async with connect(tmp_path, device="sim", stuck_timeout_s=0.05) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        monkeypatch.setattr(client.served.worker.cache.runner, "execute", lambda plan: (begun.set(), end.wait(20)))
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
        assert await asyncio.to_thread(begun.wait, 10)
        stream.cancel()

        with pytest.raises(InternalError, match=r"busy with a step for 0.05 s"):
            await asyncio.wait_for(client.served.lost_device.wait(), 10)
        end.set()


async def test_draining_answers_the_steps_that_are_here_and_ends_the_stream_in_good_order(tmp_path, tiny_llama):
    async with connect(tmp_path, device="sim", sim_seconds_per_step=0.1) as client:
        await client.get_ready(tiny_llama[0])
        stream = await client.open_stream()
        await stream.write(step(1, new_requests=[new(3, [5, 6, 7], 1)]))
        await stream.write(step(2, cached=[(3, 3)]))
        await read_tokens(stream)

        stopping = asyncio.create_task(client.served.stop())

        assert (await read_tokens(stream))[0] == 2
        assert await asyncio.wait_for(stream.read(), 10) is grpc.aio.EOF
        await stopping


HUGE = 2**32 - 1
ON_ANY_DEVICE = [
    {"num_blocks": HUGE, "block_size": HUGE},
    {"max_num_seqs": HUGE},
    {"max_num_seqs": 60_000, "max_model_len": HUGE},
    {"block_size": 0},
]
IN_HOST_MEMORY = [{"num_blocks": HUGE}, {"block_size": HUGE}, {"max_model_len": HUGE}]


@pytest.mark.parametrize(
    ("device", "changes"),
    [*(("sim", each) for each in ON_ANY_DEVICE), *(("cpu", each) for each in ON_ANY_DEVICE + IN_HOST_MEMORY)],
)
async def test_a_layout_that_no_memory_holds_is_refused_with_its_numbers(tiny_llama, tmp_path, device, changes):
    async with connect(tmp_path, device=device) as client:
        await client.load(tiny_llama[0])

        with pytest.raises(grpc.RpcError) as caught:
            await client.initialize(**changes)

        error = from_rpc_error(caught.value)
        assert isinstance(error, FailedPrecondition | InvalidRequest)
        assert all(str(value) in error.message or error.field == name for name, value in changes.items())
        assert (await client.initialize()).size_bytes > 0
