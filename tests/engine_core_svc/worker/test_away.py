"""While a worker is away, hangs or loads, the engine core reports it, and requests wait for a bounded time. Real gRPC."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.services.errors import Code, FailedPrecondition
from tetrad.services.rpc.status import from_status


async def readiness(stack):
    """Return the answers of health as they change."""
    stub = health_pb2_grpc.HealthStub(stack.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service="tetrad.v1.EngineCoreService"))


async def until_status(watch, status):
    async with asyncio.timeout(WAIT_S):
        while (await watch.read()).status != status:
            pass


async def test_a_step_that_does_not_come_back_costs_the_worker_its_readiness_and_its_connection(directory):
    async with Stack(directory, step_timeout_s=0.3) as stack:
        client, watch = await stack.client(), await readiness(stack)
        await until_status(watch, health_pb2.HealthCheckResponse.SERVING)
        stack.worker.swallow = 1

        client.add(1, [1], max_tokens=20)
        await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
        await until_status(watch, health_pb2.HealthCheckResponse.SERVING)
        await client.until_finished(1)

        assert client.tokens[1] == expected(1, 20)
        assert client.notices == ["WORKER_LOST", "RECOVERED"]
        assert "0.3 s" in client.notice_texts[0]


async def test_an_engine_without_a_worker_says_so_and_why(stack):
    client, watch = await stack.client(), await readiness(stack)
    stack.worker.refuses = True
    stack.worker.cut.set()

    client.add(1, [1], max_tokens=20)
    await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
    problem = (await stack.load()).problem
    stack.worker.refuses = False
    await client.until_finished(1)
    await until_status(watch, health_pb2.HealthCheckResponse.SERVING)

    assert "worker" in problem
    assert (await stack.load()).problem == ""
    assert client.tokens[1] == expected(1, 20)


async def test_a_session_that_is_opened_without_a_worker_is_told(stack):
    client, watch = await stack.client(), await readiness(stack)
    stack.worker.refuses = True
    stack.worker.cut.set()
    client.add(1, [1], max_tokens=20)
    await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)

    late = await stack.client()
    await late.read()
    stack.worker.refuses = False
    await late.read()

    assert late.notices == ["WORKER_LOST", "RECOVERED"]


async def test_load_says_how_the_worker_is(stack):
    client, watch = await stack.client(), await readiness(stack)
    await until_status(watch, health_pb2.HealthCheckResponse.SERVING)
    [before] = (await stack.load()).workers
    stack.worker.refuses = True
    stack.worker.cut.set()

    client.add(1, [1], max_tokens=20)
    await until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
    [lost] = (await stack.load()).workers
    stack.worker.refuses = False
    await client.until_finished(1)
    [after] = (await stack.load()).workers

    assert [each.device for each in (before, lost, after)] == [before.device] * 3
    assert [each.HasField("connected_s") for each in (before, lost, after)] == [True, False, True]
    assert after.connected_s < before.connected_s + 60


async def test_requests_do_not_wait_for_a_worker_for_ever(directory):
    async with Stack(directory, recovery_timeout_s=0.3) as stack:
        client = await stack.client()
        stack.worker.refuses = True
        stack.worker.cut.set()

        client.add(1, [1], max_tokens=20)
        await client.until_finished(1)
        client.add(2, [1], max_tokens=20)
        while "r2" not in client.rejected:
            await client.read()
        stack.worker.refuses = False
        while "RECOVERED" not in client.notices:
            await client.read()
        client.add(3, [3], max_tokens=20)
        await client.until_finished(3)

        assert from_status(client.finished[1].status).code is Code.UNAVAILABLE
        assert client.rejected["r2"].code is Code.UNAVAILABLE
        assert client.tokens[3] == expected(3, 20)


async def test_a_worker_that_makes_no_progress_in_loading_is_tried_again(directory):
    async with Stack(directory, step_timeout_s=0.2) as stack:
        stack.worker.stuck_loads = 1
        client = await stack.client()
        client.add(1, [1])
        await client.until_finished(1)

        assert stack.worker.num_loads == 2


async def test_a_worker_replaced_between_loading_and_its_first_stream_is_brought_up_again(directory):
    stack = Stack(directory)
    stack.worker.not_ready = 1
    async with stack:
        client = await stack.client()
        client.add(1, [1])
        await client.until_finished(1)

        assert stack.worker.num_loads == 2


async def test_an_engine_core_whose_clock_is_behind_takes_over_from_the_one_before(directory):
    stack = Stack(directory)
    stack.worker.epoch = 2**62  # of the one before, which stands still and is not found yet
    async with stack:
        client = await stack.client()
        client.add(1, [1])
        await client.until_finished(1)

    assert stack.worker.hello.epoch == 2**62 + 1


async def test_an_engine_core_leaves_its_worker_to_a_newer_one(stack):
    await stack.client()
    stack.worker.epoch = 2**63

    stack.worker.cut.set()
    (await stack.client()).add(1, [1])

    with pytest.raises(FailedPrecondition, match="Another engine core"):
        await asyncio.wait_for(asyncio.shield(stack.serving), WAIT_S)
