"""A LoRA adapter whose load kills the worker: its requests and orders fail, and no others."""

import asyncio
from collections import Counter

import grpc
import pytest

from tests.engine_core_svc.fake_worker import FakeWorker, expected
from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tests.engine_core_svc.service_fakes import WAIT_S, Stack
from tetrad.engine_core_svc.engine.crash_isolation import CrashIsolation
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.services.rpc.status import from_status
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import types_pb2, worker_pb2

BAD, GOOD = types_pb2.LoraRequest(name="bad", id=1, path="/bad"), types_pb2.LoraRequest(name="good", id=2, path="/good")


class DyingWorker(FakeWorker):
    """Dies of each load of BAD, also in the middle of a step."""

    def __init__(self):
        super().__init__()
        self.loads, self._death, self.has_died = Counter(), asyncio.Event(), asyncio.Event()

    async def LoadLora(self, request, context):
        self.loads[request.lora.path] += 1
        if request.lora.path == BAD.path:
            self.num_deaths += 1
            self._death.set()
            self.has_died.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
        return worker_pb2.WorkerLifecycleServiceLoadLoraResponse(digest=b"d" * 32)

    async def UnloadLora(self, request, context):
        return worker_pb2.WorkerLifecycleServiceUnloadLoraResponse()

    async def Execute(self, request_iterator, context):
        self._death.clear()
        answers, dying = super().Execute(request_iterator, context), asyncio.create_task(self._death.wait())
        while True:
            answer = asyncio.ensure_future(anext(answers, None))
            await asyncio.wait({answer, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self._death.is_set():
                answer.cancel()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
            if answer.result() is None:
                break
            yield answer.result()
        dying.cancel()


@pytest.fixture
async def lora_stack(directory):
    stack = Stack(directory, enable_lora=True, max_loras=1, max_cpu_loras=2)
    stack.worker = DyingWorker()
    async with stack:
        yield stack


async def test_requests_beside_it_are_not_blamed(lora_stack):
    """They were in flight at two deaths, and so they run alone for a while."""
    client, worker = await lora_stack.client(), lora_stack.worker
    worker.go.clear()
    for handle in (1, 5):
        client.add(handle, [handle], max_tokens=100)
    client.add(9, [9], lora_request=BAD)
    await asyncio.wait_for(worker.has_died.wait(), WAIT_S)
    worker.go.set()

    await client.until_finished(1, 5, 9)

    assert (client.tokens[1], client.tokens[5]) == (expected(1, 100), expected(5, 100))
    error = from_status(client.finished[9].status)
    assert error.message == "Adapter 'bad' at /bad cannot be loaded: 3 workers died while they loaded it. Do not use it again."
    assert (error.reason, worker.num_deaths) == ("LORA_NOT_USABLE", 3)


async def test_an_order_to_load_it_fails_and_it_is_not_loaded_again(lora_stack):
    await lora_stack.client()

    with pytest.raises(grpc.aio.AioRpcError, match="3 workers died while they loaded it"):
        await lora_stack.admin.LoadLora(pb.EngineCoreAdminServiceLoadLoraRequest(lora=BAD))

    await lora_stack.admin.LoadLora(pb.EngineCoreAdminServiceLoadLoraRequest(lora=GOOD))
    assert lora_stack.worker.loads == {"/bad": 3, "/good": 1}


def test_only_the_first_of_several_loads_counts_as_the_cause(make_bench):
    """The worker loads one adapter after the other."""
    adapters = Adapters(AdapterLimits(max_loras=1, max_cpu_loras=3), ORDERS_OF_ARRIVAL["fcfs"])
    suspects = CrashIsolation(make_bench(adapters=adapters).scheduler, tokens_to_clear=3)
    adapters.worker_ready()
    loads = [adapters.resolve(ref(number)) for number in (2, 1, 3)]
    for adapter in loads:
        adapters.want(adapter)
    adapters.loaded(loads[0], b"digest")

    suspects.note_loss()
    suspects.resolve_loss(crashed=True)

    assert [adapter.num_crashes for adapter in loads] == [0, 1, 0]
