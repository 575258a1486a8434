"""An engine core that sleeps: its requests, its notices, and overlapping commands."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.engine_core_svc.service_fakes import Stack
from tetrad.engine_core_svc import service
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, Unavailable
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2

EXPECTED = list(range(2, 102))
"""What a request with the prompt [1] and 100 tokens brings."""


async def sleep(stack, level=1, mode=pb.PAUSE_MODE_KEEP):
    await asked(stack.admin.Sleep(pb.EngineCoreAdminServiceSleepRequest(level=level, mode=mode)))


async def wake_up(stack, *tags):
    await asked(stack.admin.WakeUp(pb.EngineCoreAdminServiceWakeUpRequest(tags=tags)))


async def is_sleeping(stack):
    return (await stack.admin.IsSleeping(pb.IsSleepingRequest())).is_sleeping


async def asked(call):
    try:
        return await call
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


async def until_running(stack, client, handle=1):
    client.add(handle, [1], max_tokens=100)
    while len(client.tokens.get(handle, [])) < 10:
        await client.read()


async def until_ordered(stack):
    while not (await stack.load()).paused:
        pass


async def test_what_runs_is_recomputed_and_loses_no_token(stack):
    client = await stack.client()
    await until_running(stack, client)

    await sleep(stack)
    steps, load = stack.worker.num_steps, await stack.load()
    await wake_up(stack)
    await client.until_finished(1)

    assert client.tokens[1] == EXPECTED
    assert client.notices == ["SLEEPING", "AWAKE"]
    assert stack.worker.orders == [1, ()]
    assert (load.sleeping, load.problem) == (True, "The engine sleeps at level 1")
    assert (load.num_free_blocks, load.stats.num_waiting_reqs) == (load.num_gpu_blocks - 1, 1)
    assert stack.worker.num_steps > steps
    assert not await is_sleeping(stack)


async def test_a_new_request_is_refused_and_one_that_was_let_in_elsewhere_waits(stack):
    client = await stack.client()
    await sleep(stack, level=2)

    client.add(1, [1])
    client.add(2, [1], resumed=True)
    await client.read()
    await client.read()
    await wake_up(stack)
    await client.until_finished(2)

    assert isinstance(client.rejected["r1"], Unavailable)
    assert client.rejected["r1"].reason == "SLEEPING"
    assert "level 2" in client.rejected["r1"].message
    assert client.tokens[2] == [2, 3, 4, 5]


async def test_a_session_that_is_opened_meanwhile_is_told(stack):
    await stack.client()
    await sleep(stack)

    late = await stack.client()
    await late.read()

    assert late.notices == ["SLEEPING"]


async def test_prefixes_are_forgotten(stack):
    client = await stack.client()
    client.add(1, [1] * 40)
    await client.until_finished(1)

    await sleep(stack)
    await wake_up(stack)
    client.add(2, [1] * 40)
    await client.until_finished(2)

    stats = [each.prefill_stats for message in client.messages for each in message.outputs if each.handle == 2]
    assert stats[0].num_cached_tokens == 0


async def test_what_runs_may_finish_first(stack):
    client = await stack.client()
    await until_running(stack, client)

    await asyncio.gather(sleep(stack, mode=pb.PAUSE_MODE_WAIT), client.until_finished(1))

    assert client.tokens[1] == EXPECTED
    assert await is_sleeping(stack)


async def test_what_runs_may_be_ended(stack):
    client = await stack.client()
    await until_running(stack, client)

    await sleep(stack, mode=pb.PAUSE_MODE_ABORT)
    await client.until_finished(1)

    assert client.finished[1].finish_reason == types_pb2.FINISH_REASON_ABORT
    assert (await stack.load()).stats.num_waiting_reqs == 0


async def test_parts_wake_up_one_after_the_other(stack):
    client = await stack.client()
    await sleep(stack)

    await wake_up(stack, "weights")
    sleeps_on = await is_sleeping(stack)
    await wake_up(stack, "kv_cache")
    client.add(1, [1])
    await client.until_finished(1)

    assert sleeps_on
    assert stack.worker.orders == [1, ("weights",), ("kv_cache",)]


async def test_level_0_only_pauses(stack):
    client = await stack.client()
    await sleep(stack, level=0)

    client.add(1, [1])
    client.add(2, [], request_id="marker")
    await client.read()
    paused = await is_sleeping(stack), stack.worker.num_steps, stack.worker.orders
    await wake_up(stack)
    await client.until_finished(1)

    assert paused == (True, 0, [])


async def test_an_order_may_be_given_again_at_the_same_level_only(stack):
    await stack.client()
    await sleep(stack)

    await sleep(stack)
    with pytest.raises(AlreadyExists, match="sleeps at level 1; wake it up first"):
        await sleep(stack, level=2)
    with pytest.raises(AlreadyExists, match="wake it up instead"):
        await asked(stack.admin.Resume(pb.ResumeRequest()))
    with pytest.raises(InvalidRequest, match="level must be 0, 1, 2 or 3, got 4"):
        await sleep(stack, level=4)

    assert stack.worker.orders == [1]


async def test_a_worker_that_cannot_sleep_costs_nothing(stack):
    client = await stack.client()
    await until_running(stack, client)
    stack.worker.sleep_error = FailedPrecondition("no room on the host")

    with pytest.raises(FailedPrecondition, match="no room on the host"):
        await sleep(stack)
    await client.until_finished(1)

    assert client.tokens[1] == EXPECTED
    assert client.notices == []


async def test_a_wake_up_withdraws_an_order_that_waits_for_what_runs(stack):
    client = await stack.client()
    await until_running(stack, client)
    stack.worker.go.clear()
    order = asyncio.create_task(sleep(stack))
    await until_ordered(stack)

    await wake_up(stack)
    stack.worker.go.set()
    with pytest.raises(Unavailable, match="woken up before it slept"):
        await order
    await client.until_finished(1)

    assert client.tokens[1] == EXPECTED
    assert stack.worker.orders == []


async def test_a_worker_lost_before_the_engine_sleeps_is_replaced_and_then_sleeps(stack):
    client = await stack.client()
    await until_running(stack, client)
    stack.worker.go.clear()
    order = asyncio.create_task(sleep(stack))
    await until_ordered(stack)
    stack.worker.crashed.set()
    stack.worker.go.set()

    await order
    await wake_up(stack)
    await client.until_finished(1)

    assert client.notices == ["WORKER_LOST", "RECOVERED", "SLEEPING", "AWAKE"]
    assert client.tokens[1] == EXPECTED


async def test_a_worker_that_was_replaced_in_its_sleep_is_brought_up_anew(stack):
    client = await stack.client()
    await until_running(stack, client)
    await sleep(stack)
    stack.worker.asleep.clear()
    stack.worker.num_deaths += 1

    await wake_up(stack)
    await client.until_finished(1)

    assert client.tokens[1] == EXPECTED


async def test_orders_for_adapters_are_refused_meanwhile(directory):
    lora = types_pb2.LoraRequest(name="a", id=1, path="/a")
    async with Stack(directory, enable_lora=True) as stack:
        await stack.client()
        await sleep(stack)

        with pytest.raises(FailedPrecondition) as refused:
            await asked(stack.admin.LoadLora(pb.EngineCoreAdminServiceLoadLoraRequest(lora=lora), timeout=5))

    assert refused.value.reason == "SLEEPING"


async def test_health_and_load_say_that_it_sleeps(stack):
    await stack.client()
    health = health_pb2_grpc.HealthStub(stack.channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    question = health_pb2.HealthCheckRequest(service="tetrad.v1.EngineCoreService")

    await sleep(stack, level=2)
    asleep = await stack.load(), (await health.Check(question)).status
    await wake_up(stack)
    awake = await stack.load(), (await health.Check(question)).status

    assert (asleep[0].sleeping, asleep[0].problem) == (True, "The engine sleeps at level 2")
    assert (awake[0].sleeping, awake[0].problem) == (False, "")
    assert (asleep[1] == serving, awake[1] == serving) == (False, True)


@pytest.mark.parametrize(
    ("level", "state"), [(0, "awake"), (1, "weights_offloaded"), (2, "discard_all"), (3, "kv_cache_released")]
)
async def test_a_gauge_says_how_the_engine_sleeps(directory, monkeypatch, level, state):
    """Under vLLM's name and with its labels."""
    found = []
    monkeypatch.setattr(service, "EngineMetrics", lambda *args: found.append(EngineMetrics(*args)) or found[-1])
    async with Stack(directory) as stack:
        await stack.client()
        await sleep(stack, level=level)
        values = {
            each: found[0].registry.get_sample_value("tetrad:engine_sleep_state", {"sleep_state": each})
            for each in ("awake", "weights_offloaded", "discard_all", "kv_cache_released")
        }

    assert values == {each: float(each == state) for each in values}
