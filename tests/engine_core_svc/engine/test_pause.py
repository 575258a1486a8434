"""Pauses: the engine core answers when requests have stopped, and clears the prefix cache. Real gRPC."""

import asyncio

import pytest

from tests.engine_core_svc.fake_worker import expected
from tetrad.v1 import engine_core_pb2 as pb

PROMPT = [1] * 40


async def running(stack):
    """Return a client with a request in a step that does not end while `go` is cleared, after one of the same prompt."""
    client = await stack.client()
    client.add(1, PROMPT)
    await client.until_finished(1)
    stack.worker.go.clear()
    client.add(2, PROMPT, max_tokens=8)
    await stack.until_load(lambda load: load.stats.num_running_reqs == 1)
    return client


async def num_cached(stack, client):
    """Return how many tokens of the prompt are cached."""
    client.add(3, PROMPT)
    await client.until_finished(3)
    [stats] = [each.prefill_stats for message in client.messages for each in message.outputs if each.handle == 3][:1]
    return stats.num_cached_tokens


@pytest.mark.parametrize(
    "order",
    [
        lambda admin: admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_WAIT)),
        lambda admin: admin.Sleep(pb.EngineCoreAdminServiceSleepRequest(level=0, mode=pb.PAUSE_MODE_WAIT)),
    ],
    ids=["pause", "sleep at level 0"],
)
async def test_a_pause_that_lets_requests_finish_is_answered_when_they_have(stack, order):
    client = await running(stack)

    pause = asyncio.ensure_future(order(stack.admin))
    await stack.until_load(lambda load: load.paused)
    early, _ = await asyncio.wait({pause}, timeout=0.2)
    stack.worker.go.set()
    await pause

    assert not early
    assert (await stack.load()).stats.num_running_reqs == 0
    await client.until_finished(2)
    assert client.tokens[2] == expected(1, 8)


async def test_a_resumed_engine_core_answers_the_pause(stack):
    client = await running(stack)
    pause = asyncio.ensure_future(stack.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_WAIT, clear_cache=True)))
    await stack.until_load(lambda load: load.paused)

    await stack.admin.Resume(pb.ResumeRequest())
    await pause

    stack.worker.go.set()
    assert await num_cached(stack, client) == 32


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("mode", [pb.PAUSE_MODE_WAIT, pb.PAUSE_MODE_ABORT])
async def test_a_pause_clears_the_prefix_cache_whatever_runs(stack, mode, clears):
    """The weights may change during a pause: no later request may find what the old ones computed."""
    client = await running(stack)

    pause = asyncio.ensure_future(stack.admin.Pause(pb.PauseRequest(mode=mode, clear_cache=clears)))
    await stack.until_load(lambda load: load.paused)
    stack.worker.go.set()
    await pause
    await stack.admin.Resume(pb.ResumeRequest())

    assert await num_cached(stack, client) == (0 if clears else 32)


async def test_a_pause_that_clears_the_prefix_cache_lets_frozen_requests_be_computed_again(stack):
    client = await running(stack)

    await stack.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP, clear_cache=True))
    load = await stack.load()
    stack.worker.go.set()
    await stack.admin.Resume(pb.ResumeRequest())
    await client.until_finished(2)

    assert (load.stats.num_running_reqs, load.stats.num_waiting_reqs) == (0, 1)
    assert client.tokens[2] == expected(1, 8)
