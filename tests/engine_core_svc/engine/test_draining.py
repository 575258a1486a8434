"""The end of an engine core: it hands back unfinished requests; a bug in its loop ends the process. Real gRPC."""

import asyncio

import grpc
import pytest

from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.engine_core_svc.scheduler.adapters import Adapters
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2


async def test_draining_without_a_worker_hands_everything_back_at_once(directory):
    async with Stack(directory, drain_timeout_s=60.0) as stack:
        client = await stack.client()
        stack.worker.refuses = True
        stack.worker.cut.set()
        client.add(1, [1], max_tokens=20)
        while "WORKER_LOST" not in client.notices:
            await client.read()

        stack.shutdown.set()
        await asyncio.wait_for(stack.serving, 5)

        assert 1 not in client.finished
        assert await client.until_end() is grpc.StatusCode.OK


async def test_what_does_not_finish_within_the_grace_is_handed_back_in_good_order(directory):
    async with Stack(directory, drain_timeout_s=0.1) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, [1], max_tokens=20)
        await stack.until_load(lambda load: load.stats.num_running_reqs == 1)

        stack.shutdown.set()

        assert await client.until_end() is grpc.StatusCode.OK
        assert client.finished == {}


@pytest.mark.parametrize("mode", [pb.PAUSE_MODE_KEEP, pb.PAUSE_MODE_WAIT])
async def test_draining_while_paused_hands_everything_back_at_once(directory, mode):
    async with Stack(directory, drain_timeout_s=60.0) as stack:
        client = await stack.client()
        await stack.admin.Pause(pb.PauseRequest(mode=mode))
        client.add(1, [1], max_tokens=20)
        await stack.until_load(lambda load: load.stats.num_waiting_reqs == 1)

        stack.shutdown.set()
        await asyncio.wait_for(stack.serving, 5)

        assert await client.until_end() is grpc.StatusCode.OK


async def test_a_pause_during_draining_hands_everything_back_at_once(directory):
    async with Stack(directory, drain_timeout_s=60.0) as stack:
        client = await stack.client()
        stack.worker.go.clear()
        client.add(1, [1], max_tokens=20)
        await stack.until_load(lambda load: load.stats.num_running_reqs == 1)
        stack.shutdown.set()
        while "DRAINING" not in client.notices:
            await client.read()

        await stack.admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))
        stack.worker.go.set()
        await asyncio.wait_for(stack.serving, 5)

        assert 1 not in client.finished
        assert await client.until_end() is grpc.StatusCode.OK


async def test_a_bug_in_the_step_loop_ends_the_process_for_the_next_one_to_go_on(stack, monkeypatch):
    client = await stack.client()
    monkeypatch.setattr("tetrad.engine_core_svc.scheduler.results.check_stop", lambda request: 1 / 0)

    client.add(1, [1])

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)


async def test_a_bug_in_a_timer_does_too(stack, monkeypatch):
    client = await stack.client()
    monkeypatch.setattr("tetrad.engine_core_svc.engine.arrivals.DeadlineExceeded", lambda text: 1 / 0)

    client.add(1, [1], max_tokens=200, timeout_nanos=1)

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)


async def test_a_bug_after_the_load_of_an_adapter_does_too(directory, monkeypatch):
    """Else the requests of all adapters could wait for ever."""
    monkeypatch.setattr(Adapters, "failed", lambda adapters, adapter: 1 / 0)
    async with Stack(directory, enable_lora=True) as stack:
        client = await stack.client()

        client.add(1, [1], lora_request=types_pb2.LoraRequest(name="a", id=1, path="/a"))  # the fake cannot load it

        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)
