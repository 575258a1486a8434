"""WatchLoad: every change is reported, also while no step returns."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.v1 import engine_core_pb2 as pb


@asynccontextmanager
async def watching(stack):
    """Yield a function that waits until the load, as it is told from now on, is such."""
    call = stack.admin.WatchLoad(pb.WatchLoadRequest(min_interval_ms=0))
    await call.read()

    async def until(holds):
        async with asyncio.timeout(WAIT_S):
            while not holds((await call.read()).load):
                pass

    try:
        yield until
    finally:
        call.cancel()


@pytest.fixture
async def stuck(directory):
    """A stack whose worker answers no step, and which runs one request at a time."""
    async with Stack(directory, max_num_seqs=1) as stack:
        stack.worker.go.clear()
        yield stack


async def test_requests_that_come(stuck):
    client = await stuck.client()

    async with watching(stuck) as until:
        client.add(1, [1])
        await until(lambda load: load.stats.num_running_reqs == 1)
        client.add(2, [1, 2, 3])
        await until(lambda load: (load.stats.num_waiting_reqs, load.num_waiting_tokens) == (1, 3))


async def test_requests_that_are_aborted(stuck):
    client = await stuck.client()
    client.add(1, [1], request_id="a")
    await stuck.until_load(lambda load: load.stats.num_running_reqs == 1)

    async with watching(stuck) as until:
        client.abort("a")
        await until(lambda load: load.stats.num_running_reqs == 0)


async def test_sessions(stuck):
    await stuck.client()

    async with watching(stuck) as until:
        other = await stuck.client()
        await until(lambda load: load.num_sessions == 2)
        other.outbound.put_nowait(None)
        await until(lambda load: load.num_sessions == 1)


async def test_pauses(stuck):
    await stuck.client()

    async with watching(stuck) as until:
        await stuck.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))
        await until(lambda load: load.paused)
        await stuck.admin.Resume(pb.ResumeRequest())
        await until(lambda load: not load.paused)


async def test_sleep(stuck):
    await stuck.client()

    async with watching(stuck) as until:
        await stuck.admin.Sleep(pb.EngineCoreAdminServiceSleepRequest(level=1))
        await until(lambda load: load.sleeping and "sleeps at level 1" in load.problem)
        await stuck.admin.WakeUp(pb.EngineCoreAdminServiceWakeUpRequest())
        await until(lambda load: not (load.sleeping or load.paused or load.problem) and load.workers[0].HasField("connected_s"))


async def test_a_worker_that_is_lost_and_back(stuck):
    client = await stuck.client()
    client.add(1, [1])
    await stuck.until_load(lambda load: load.stats.num_running_reqs == 1)

    async with watching(stuck) as until:
        stuck.worker.crashed.set()
        stuck.worker.go.set()
        await until(lambda load: load.problem and not load.workers[0].HasField("connected_s"))
        await until(lambda load: not load.problem and load.workers[0].HasField("connected_s"))


async def test_a_prefix_cache_that_is_reset_by_preempting(stuck):
    client = await stuck.client()
    client.add(1, [1, 2, 3])
    await stuck.until_load(lambda load: load.stats.num_running_reqs == 1)
    await stuck.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))

    async with watching(stuck) as until:
        await stuck.admin.ResetPrefixCache(pb.ResetPrefixCacheRequest(reset_running_requests=True))
        await until(lambda load: (load.stats.num_running_reqs, load.num_waiting_tokens) == (0, 3))
