"""Loads of adapters that fail: callers get the error, and requests that use the adapter keep it."""

import asyncio
import contextlib

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import PARKED, FakeLoraEngine, ref
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.engine import adapter_loading
from tetrad.engine_core_svc.engine.adapter_loading import AdapterLoading
from tetrad.engine_core_svc.engine.guard import Guard
from tetrad.services.errors import FailedPrecondition, ModelError, NotFound, Overloaded, TetradError, Unavailable


class FailingWorkers:
    """Workers whose first `num_failures` loads fail."""

    def __init__(self, num_failures):
        self.num_failures, self.loads, self.unloads = num_failures, [], []
        self.error = ModelError("no such matrix")

    async def load_lora(self, adapter):
        self.loads.append(adapter.ref.name)
        await asyncio.sleep(0)
        if len(self.loads) <= self.num_failures:
            raise self.error
        return b"digest"

    async def unload_lora(self, adapter):
        self.unloads.append(adapter.key)


class House:
    """An engine's adapters and their loading; `failed`: requests that ended with an error."""

    def __init__(self, num_failures, max_cpu_loras=2):
        self.engine = FakeLoraEngine(is_up=False, max_cpu_loras=max_cpu_loras)
        self.workers, self.failed = FailingWorkers(num_failures), []
        self.guard = Guard(lambda: None)
        self.loading = AdapterLoading(
            self.engine.adapters, self.workers, fail=self._fail, on_change=lambda: None, watch=self.guard.watch
        )
        self.loading.worker_ready()

    def _fail(self, requests, error):
        for request in list(requests):
            self.failed.append((request, error.message))
            self.engine.end(request, PARKED)

    def lose_worker(self):
        self.engine.adapters.forget_worker()
        self.loading.forget_worker()

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)

    def request_with_a_grammar(self, number):
        adapter = self.engine.adapters.resolve(ref(number))
        waits = RequestStatus.WAITING_FOR_GRAMMAR
        request = Request(1, "r1", [1, 2], 2, 9, priority=0, sequence_number=1, adapter=adapter, status=waits)
        self.engine.adapters.begin(request)
        return request

    def grammar_ready(self, request):
        request.move_to(RequestStatus.WAITING)
        assert not self.engine.adapters.admits(request)
        request.move_to(PARKED)
        self.engine.adapters.park(request)


async def test_an_adapter_that_cannot_be_loaded_is_forgotten():
    house = House(num_failures=1)
    with pytest.raises(TetradError, match="Adapter 'a1' at /a1 cannot be loaded: no such matrix"):
        await house.loading.add(ref(1))
    assert house.loading.list_loras() == []
    with pytest.raises(NotFound):
        house.engine.adapters.registry.get(1)
    assert (await house.loading.add(ref(1))).is_resident


@pytest.mark.parametrize(("num_failures", "ends"), [(1, "runs"), (2, "fails")])
async def test_a_request_that_waits_for_its_grammar_while_the_load_fails_lets_it_be_loaded_again(num_failures, ends):
    house = House(num_failures)
    order = asyncio.create_task(house.loading.add(ref(1)))
    await asyncio.sleep(0)
    request = house.request_with_a_grammar(1)
    with pytest.raises(TetradError):
        await order

    house.grammar_ready(request)
    await house.settle()

    assert house.workers.loads == ["a1", "a1"]
    if ends == "runs":
        assert (house.engine.released, house.failed) == ([request], [])
    else:
        assert house.engine.released == []
        assert house.failed == [(request, "Adapter 'a1' at /a1 cannot be loaded: no such matrix")]
        assert house.loading.list_loras() == []


async def test_a_failed_load_that_several_requests_waited_for_is_not_repeated():
    house = House(num_failures=1)
    requests = [house.engine.request(1) for _ in range(3)]
    await house.settle()

    assert [request for request, _ in house.failed] == requests
    assert house.workers.loads == ["a1"]
    assert house.loading.list_loras() == []


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_load_that_a_lost_connection_ends_fails_no_request(monkeypatch, is_lost):
    """The end of the call may be noticed before the end of the stream of plans, which tells that the worker is lost."""
    monkeypatch.setattr(adapter_loading, "_RETRY_S", 1000.0 if is_lost else 0.0)
    house = House(num_failures=1)
    house.workers.error = Unavailable("connection reset")
    request = house.engine.request(1)
    await house.settle()

    if is_lost:
        house.lose_worker()
        house.loading.worker_ready()
    await house.settle()

    assert (house.engine.released, house.failed) == ([request], [])
    assert house.workers.loads == ["a1", "a1"]


async def test_a_worker_that_never_answers_a_load_fails_its_requests(monkeypatch):
    monkeypatch.setattr(adapter_loading, "_RETRY_S", 0.0)
    house = House(num_failures=1000)
    house.workers.error = Unavailable("connection refused")
    request = house.engine.request(1)
    async with asyncio.timeout(10):
        while not house.failed:  # noqa: ASYNC110 - the fake has no event to wait for
            await asyncio.sleep(0)

    assert house.failed == [(request, "Adapter 'a1' at /a1 cannot be loaded: connection refused")]


async def test_an_adapter_that_is_removed_while_it_is_loaded_is_unloaded():
    house = House(num_failures=0)
    order = asyncio.create_task(house.loading.add(ref(1)))
    await asyncio.sleep(0)
    adapter = house.engine.adapters.registry.get(1)

    await house.loading.remove(1)
    with pytest.raises(TetradError, match="was unloaded while it was loaded"):
        await order
    await house.settle()

    assert house.workers.loads == ["a1"]
    assert house.workers.unloads == [adapter.key]


@pytest.mark.parametrize("num_turns", [1, 2, 3, 4])
async def test_a_version_whose_caller_disconnects_is_unloaded(num_turns):
    house = House(num_failures=0)
    before = await house.loading.add(ref(1))
    order = asyncio.create_task(house.loading.add(ref(1, load_inplace=True)))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    (new,) = house.engine.adapters.registry.versions.keys() - {before.key}

    order.cancel()
    await house.settle()

    if order.cancelled():
        assert (house.loading.list_loras(), house.workers.unloads) == ([before], [new])
        assert house.engine.adapters.registry.versions.keys() == {before.key}
    else:
        assert house.workers.unloads == [before.key]


@pytest.mark.parametrize("num_turns", range(8))
async def test_an_adapter_that_is_unloaded_as_its_load_ends_is_unknown_or_in_use_as_a_whole(num_turns):
    house = House(num_failures=0)
    order = asyncio.create_task(house.loading.add(ref(1)))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    with contextlib.suppress(NotFound):  # too early: the adapter is not known yet
        await house.loading.remove(1)
    await asyncio.gather(order, return_exceptions=True)
    await house.settle()

    known = house.engine.adapters.registry.versions.values()
    assert house.loading.list_loras() == list(known)
    assert all(adapter.is_resident for adapter in known)


async def test_an_order_without_a_worker_waits_for_the_next_one_and_fails_no_request():
    house = House(num_failures=1)
    house.lose_worker()
    request = house.engine.request(1)
    order = asyncio.create_task(house.loading.add(ref(1)))
    await house.settle()
    assert (house.workers.loads, house.failed) == ([], [])

    house.workers.num_failures = 0
    house.loading.worker_ready()

    assert (await order).is_resident
    assert house.engine.released == [request]
    assert house.workers.loads == ["a1"]


async def test_an_order_for_which_the_next_worker_has_no_room_fails():
    """The worker is lost during the load, and a request needs the only place of the next one."""
    house = House(num_failures=0, max_cpu_loras=1)
    order = asyncio.create_task(house.loading.add(ref(1)))
    await asyncio.sleep(0)
    house.lose_worker()
    request = house.engine.request(2)

    house.loading.worker_ready()

    with pytest.raises(Overloaded):
        await asyncio.wait_for(order, 1)
    await house.settle()
    assert house.engine.released == [request]


async def test_a_pin_without_a_place_for_its_adapter_pins_nothing():
    house = House(num_failures=0, max_cpu_loras=2)
    house.engine.adapters.resolve(ref(3))
    for number in (1, 2):
        await house.loading.add(ref(number))
        house.engine.adapters.registry.get(number).is_active = True

    with pytest.raises(Overloaded):
        await house.loading.pin(3)

    assert house.engine.names("is_pinned") == []
    await house.loading.pin(1)
    assert house.engine.names("is_pinned") == ["a1"]


async def test_a_sleeping_engine_refuses_orders_and_ends_those_that_wait():
    house = House(num_failures=0)
    known = await house.loading.add(ref(1))
    order = asyncio.create_task(house.loading.add(ref(2)))
    await asyncio.sleep(0)
    house.lose_worker()

    house.loading.sleep()

    for refused in (order, house.loading.add(ref(2)), house.loading.add(ref(1)), house.loading.pin(1)):
        with pytest.raises(FailedPrecondition, match="The engine sleeps and loads no adapter; wake it up first"):
            await asyncio.wait_for(refused, 1)
    assert house.loading.list_loras() == [known]
    assert not known.is_pinned

    house.loading.worker_ready()

    assert (await house.loading.add(ref(1))).is_resident
    assert (await house.loading.add(ref(2))).is_resident


async def test_a_bug_after_the_load_reaches_the_step_loop():
    house = House(num_failures=0)
    house.engine.request(1)
    house.engine.adapters.refill = lambda: 1 // 0

    await house.settle()

    with pytest.raises(ZeroDivisionError):
        house.guard.check()
