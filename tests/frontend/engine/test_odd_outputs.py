"""An output that breaks the contract fails its request alone; the session and its other requests continue."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.frontend.fakes import TEXT
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import InternalError
from tetrad.services.rpc.columns import pack_f32, pack_u32
from tetrad.v1 import engine_core_pb2, types_pb2

LONG = TEXT * 3


def start(llm, request_id):
    async def collect():
        params = SamplingParams(max_tokens=60, output_kind=RequestOutputKind.DELTA)
        ids = [token async for output in llm.generate("hi", params, request_id) for token in output.outputs[0].token_ids]
        return bytes(ids).decode()

    return asyncio.create_task(collect())


def decoded(handle, ids):
    columns = {"handles": pack_u32([handle]), "num_tokens": pack_u32([len(ids)]), "token_ids": pack_u32(ids)}
    return {"decode": engine_core_pb2.DecodeBatch(**columns)}


def rich(handle, ids=None, **fields):
    ids = pack_u32([88]) if ids is None else ids
    return {"outputs": [engine_core_pb2.EngineCoreOutput(handle=handle, new_token_ids=ids, **fields)]}


def logprobs(num_ids, num_ranks, width=1):
    return types_pb2.LogprobsColumns(
        token_ids=pack_u32([88] * num_ids), logprobs=pack_f32([-1.0] * num_ids), ranks=pack_u32([1] * num_ranks), width=width
    )


ODD = {
    "a token outside the vocabulary": lambda handle: decoded(handle, [40_000]),
    "more log-probabilities than tokens": lambda handle: rich(handle, new_logprobs=logprobs(2, 2)),
    "fewer log-probabilities than tokens": lambda handle: rich(
        handle, ids=pack_u32([88, 89]), new_logprobs=logprobs(2, 1, width=2)
    ),
    "columns of log-probabilities that disagree": lambda handle: rich(handle, new_logprobs=logprobs(1, 2)),
    "a token id that is cut": lambda handle: rich(handle, ids=b"abc"),
    "a finish reason that nobody knows": lambda handle: rich(handle, finish_reason=77),
}


async def say(engine, **fields):
    """Send outputs of a step that follows all that were sent, and leave its number out."""
    outputs = engine_core_pb2.EngineCoreOutputs(step_id=engine.num_steps, **fields)
    engine.num_steps += 1
    await engine.say(engine_core_pb2.SessionResponse(outputs=outputs))


@pytest.fixture
async def two(connect, engine):
    """A frontend, and two requests that have ten tokens each."""
    llm = await connect()
    engine.pause()
    tasks = [start(llm, request_id) for request_id in ("a", "b")]
    await engine.until(lambda: len(engine.running) == 2)
    await engine.take(10)
    return tasks


@pytest.mark.parametrize("kind", ODD)
async def test_an_odd_output_ends_its_request_alone(two, engine, kind):
    odd, other = two
    [request] = [each for each in engine.requests if each.external_req_id == "a"]

    with capture_logs() as logs:
        await say(engine, **ODD[kind](request.handle))
        with pytest.raises(InternalError, match="The engine core's") as failed:
            await asyncio.wait_for(odd, 10)
        await engine.until(lambda: engine.aborted == [request.request_id])
    await engine.allow(None)

    assert failed.value.reason == "PROTOCOL_ERROR"
    assert await asyncio.wait_for(other, 10) == LONG[:60]
    assert len(engine.requests) == 2, "the session was not opened again"
    [entry] = [each for each in logs if each["event"] == "engine.odd_output"]
    assert (entry["handle"], entry["count"]) == (request.handle, 1)


@pytest.mark.parametrize("kind", ODD)
async def test_an_odd_output_for_a_handle_that_nobody_has_costs_nothing(two, engine, kind):
    with capture_logs() as logs:
        for _ in range(5):
            await say(engine, **ODD[kind](4711))
        await engine.allow(None)
        texts = await asyncio.wait_for(asyncio.gather(*two), 10)

    assert texts == [LONG[:60]] * 2
    assert len(engine.requests) == 2
    assert [each["count"] for each in logs if each["event"] == "engine.unknown_handle"] == [1, 2, 4]


async def test_a_late_output_for_a_request_that_has_ended_is_not_logged(two, engine):
    two[0].cancel()
    await engine.until(lambda: engine.aborted)
    [ended] = [each for each in engine.requests if each.request_id in engine.aborted]

    with capture_logs() as logs:
        await say(engine, **decoded(ended.handle, [88]))
        await engine.allow(None)
        text = await asyncio.wait_for(two[1], 10)

    assert text == LONG[:60]
    assert not [each for each in logs if each["event"].startswith("engine.")]


async def test_a_notice_of_a_later_release_does_not_end_the_session(two, engine):
    await engine.tell(99)
    await engine.allow(None)

    assert await asyncio.wait_for(asyncio.gather(*two), 10) == [LONG[:60]] * 2
    assert len(engine.requests) == 2
