"""An operator's pause outlives its engine core: the worker keeps it for the next one."""

import grpc
import pytest

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.service_fakes import Stack
from tetrad.v1 import engine_core_pb2 as pb


async def pause(stack, mode=pb.PAUSE_MODE_KEEP):
    await stack.admin.Pause(pb.PauseRequest(mode=mode))


async def resume(stack):
    await stack.admin.Resume(pb.ResumeRequest())


@pytest.mark.parametrize("mode", [pb.PAUSE_MODE_KEEP, pb.PAUSE_MODE_WAIT, pb.PAUSE_MODE_ABORT])
async def test_a_restarted_engine_core_is_still_paused_and_runs_when_resumed(stack, mode):
    await stack.client()
    await pause(stack, mode)

    await stack.restart_engine_core()
    client = await stack.client()
    client.add(1, [1], max_tokens=5)
    load = await stack.until_load(lambda load: load.stats.num_waiting_reqs == 1)
    num_steps = stack.worker.num_steps
    await resume(stack)
    await client.until_finished(1)

    assert load.paused
    assert num_steps == 0
    assert client.tokens[1] == expected(1, 5)


async def test_a_restarted_engine_core_runs_when_the_pause_was_over(stack):
    await stack.client()
    await pause(stack)
    await resume(stack)

    await stack.restart_engine_core()

    assert not (await stack.load()).paused


async def test_a_worker_that_replaces_another_is_told_of_the_pause(stack):
    """In a rolling restart the worker is the first to go, the engine core the second."""
    client = await stack.client()
    client.add(1, [1], max_tokens=100)
    await client.read()
    stack.worker.go.clear()
    await pause(stack)

    stack.worker.engine_pause = None
    stack.worker.crashed.set()
    stack.worker.go.set()
    while "RECOVERED" not in client.notices:
        await client.read()
    await stack.restart_engine_core()

    assert (await stack.load()).paused


async def test_an_engine_core_that_slept_is_awake_after_a_restart(stack):
    await stack.client()
    await pause(stack)
    await stack.admin.Sleep(pb.EngineCoreAdminServiceSleepRequest(level=1))

    stack.worker.asleep = set()
    await stack.restart_engine_core()

    assert not (await stack.load()).paused


async def test_an_engine_core_in_front_of_an_older_worker_is_paused_all_the_same(directory):
    async def unimplemented(request, context):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    stack = Stack(directory)
    stack.worker.KeepPause = unimplemented
    async with stack:
        await stack.client()

        await pause(stack)

        assert (await stack.load()).paused
