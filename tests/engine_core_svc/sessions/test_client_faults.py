"""Faulty clients: odd messages, malformed columns, floods. Other clients are served meanwhile. Real gRPC."""

import asyncio
import gc

import grpc
import pytest

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.service_fakes import Stack
from tetrad.services.errors import Code
from tetrad.services.rpc.columns import pack_u32
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2


@pytest.mark.parametrize(
    "message", [pb.SessionRequest(), pb.SessionRequest(hello=pb.SessionHello(client_id="again"))], ids=["empty", "second hello"]
)
async def test_a_strange_message_ends_its_session_and_no_other(stack, message):
    good, bad = await stack.client(), await stack.client()
    good.add(1, [1], max_tokens=50)

    bad.outbound.put_nowait(message)

    assert await bad.until_end() is grpc.StatusCode.INVALID_ARGUMENT
    await good.until_finished(1)
    assert good.tokens[1] == expected(1, 50)


async def test_a_session_without_a_hello_is_refused(stack):
    await stack.client()
    stranger = stack.raw_client()
    stranger.add(1, [1])

    assert await stranger.until_end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_columns_that_cannot_be_read_are_answered_alone(stack):
    client = await stack.client()
    request = pb.EngineCoreRequest(
        request_id="bad", handle=9, prompt_token_ids=b"12345", sampling_params=types_pb2.SamplingParams(max_tokens=1)
    )

    client.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=[request])))
    client.add(1, [1])
    await client.until_finished(1)

    assert client.rejected["bad"].code is Code.INVALID_ARGUMENT


async def test_a_flood_of_requests_is_refused_and_others_are_served_meanwhile(directory):
    async with Stack(directory, max_num_queued_reqs=100) as stack:
        good, bad = await stack.client(), await stack.client()
        requests = [
            pb.EngineCoreRequest(
                request_id=f"f{number}", handle=number, prompt_token_ids=pack_u32([1]),
                sampling_params=types_pb2.SamplingParams(max_tokens=1),
            )
            for number in range(8_000)
        ]  # fmt: skip
        stack.worker.go.clear()
        bad.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=requests)))
        while len(bad.rejected) < 1000:
            await bad.read()
        bad.call.cancel()
        stack.worker.go.set()

        good.add(1, [1], max_tokens=50, resumed=True)
        await good.until_finished(1)

        assert good.tokens[1] == expected(1, 50)
        assert {error.code for error in bad.rejected.values()} == {Code.RESOURCE_EXHAUSTED}
        assert all(error.retry_after_s >= 1 for error in bad.rejected.values())


async def test_what_was_accepted_before_is_never_refused_for_a_full_queue(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_reqs=1) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        for handle in range(1, 6):
            client.add(
                handle, [handle], resumed=handle % 2 == 0, resumed_output_token_ids=pack_u32([handle + 1] * (handle % 2))
            )
        stack.worker.go.set()

        await client.until_finished(*range(1, 6))

        assert client.rejected == {}


async def test_waiting_tokens_have_a_limit_that_an_empty_queue_does_not_know(directory):
    async with Stack(directory, max_num_seqs=1, max_num_queued_tokens=30) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, list(range(100)))
        await stack.until_load(lambda load: load.stats.num_running_reqs == 1)
        for handle in (2, 3):
            client.add(handle, [handle] * 20)
        await client.read()
        stack.worker.go.set()
        await client.until_finished(1, 2)

        assert set(client.rejected) == {"r3"}
        assert "20 more exceed the 30" in client.rejected["r3"].message


async def test_a_frontend_that_leaves_while_its_large_call_is_added_leaves_no_trace(stack):
    """No task ends with an exception that nobody reads."""
    problems, params = [], types_pb2.SamplingParams(max_tokens=100)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    call = [
        pb.EngineCoreRequest(
            request_id=f"r{handle}", handle=handle, prompt_token_ids=pack_u32([1]), sampling_params=params, call_number=7
        )
        for handle in range(3000)
    ]

    for _ in range(5):
        client = await stack.client()
        client.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=call)))
        await stack.until_load(lambda load: load.stats.num_running_reqs + load.stats.num_waiting_reqs > 0)
        client.call.cancel()
        await stack.until_idle()
        gc.collect()

    assert not problems
