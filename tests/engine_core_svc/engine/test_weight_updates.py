"""Updates of an engine's weights: applied between two steps, while new and running requests are held."""

import asyncio
from types import SimpleNamespace

import pytest

from tetrad.engine_core_svc.api.weights_wire import with_weights
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.engine.orders import Orders
from tetrad.engine_core_svc.engine.sleep import Sleeper
from tetrad.engine_core_svc.engine.weight_updates import WeightUpdates
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.engine_core_svc.worker.group import NewWeights, Weights
from tetrad.services.errors import AlreadyExists, FailedPrecondition, ModelError, Unavailable
from tetrad.v1 import engine_core_pb2 as pb

LOST = Unavailable("The worker was lost.")


class Workers:
    """Workers that replace their weights, or raise the next error; `order` has what they were told."""

    def __init__(self, *errors):
        self.errors, self.order, self.weights = list(errors), [], Weights()

    async def check_weights(self, path):
        await asyncio.sleep(0)
        return NewWeights(path, "1", ("digest",))

    async def replace_weights(self, update, version):
        self.order.append((update.path, version))
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        self.weights = Weights(update.path, version)

    async def connect(self, on_change):
        return "stream"


class Engine:
    def __init__(self, *errors):
        self.workers, self.sessions = Workers(*errors), Sessions()
        self.scheduler, self.aborts = SimpleNamespace(admitting=True, running=["a request"]), 0
        sleeper = Sleeper(self.workers, self.sessions, Condition(lambda: None))
        self.orders = Orders(self.scheduler, sleeper, abort_all=self._abort, on_change=lambda: None)
        self.metrics = EngineMetrics()
        self.updates = WeightUpdates(self.workers, self.sessions, self.orders, self.metrics)

    def num_updates(self, result):
        return self.metrics.registry.get_sample_value("tetrad:engine_weight_updates_total", {"result": result})

    def _abort(self):
        self.aborts += 1

    async def checked(self, path="/new"):
        self.updates.begin()
        await self.updates.check(path)
        return self.updates

    async def ordered(self, **mode):
        """Connect, and order an update; return the task that waits for its end."""
        await self.updates.connect(lambda: None)
        await self.checked()
        finishing = asyncio.create_task(self.updates.finish("v2", **mode))
        await asyncio.sleep(0.01)
        assert not finishing.done()
        return finishing


async def test_an_update_waits_for_the_boundary_of_steps_and_holds_requests_until_then():
    engine = Engine()
    finishing = await engine.ordered()
    held = engine.orders.is_frozen, engine.orders.may_rest, list(engine.workers.order)

    engine.updates.note_closed()
    await engine.updates.apply()

    assert held == (True, True, [])
    assert await finishing == "v2"
    assert (engine.num_updates("done"), engine.num_updates("failed")) == (1, 0)
    assert engine.workers.order == [("/new", "v2")]
    assert (engine.orders.is_frozen, engine.orders.may_rest, engine.scheduler.admitting) == (False, False, True)


async def test_running_requests_may_finish_first():
    engine = Engine()
    finishing = await engine.ordered(finish_running=True)
    before = engine.orders.may_rest, engine.scheduler.admitting

    engine.scheduler.running.clear()

    assert before == (False, False)
    assert engine.orders.may_rest
    finishing.cancel()


async def test_all_requests_may_be_ended_first():
    engine = Engine()
    finishing = await engine.ordered(abort=True)

    assert engine.aborts == 1
    finishing.cancel()


async def test_a_pause_stays_in_force_behind_an_update():
    engine = Engine()
    engine.orders.pause()
    finishing = await engine.ordered()

    engine.updates.note_closed()
    await engine.updates.apply()
    await finishing

    assert engine.orders.is_frozen


async def test_without_a_stream_the_weights_are_replaced_at_once():
    """As while the engine sleeps, or while no worker can load the weights of the last update."""
    engine = Engine()

    assert await (await engine.checked()).finish("v2") == "v2"
    assert engine.workers.order == [("/new", "v2")]


async def test_an_update_without_a_name_leaves_the_name():
    engine = Engine()
    engine.workers.weights = Weights("/old", "v1")

    assert await (await engine.checked()).finish("") == "v1"


async def test_outputs_name_the_weights_of_the_stream():
    engine = Engine()
    await (await engine.checked()).finish("v2")

    await engine.updates.connect(lambda: None)

    assert engine.sessions.weight_version == "v2"


async def test_the_loss_of_a_worker_repeats_an_update_once():
    engine = Engine(LOST)
    finishing = await engine.ordered()
    engine.updates.note_closed()
    await engine.updates.apply()
    assert not finishing.done()
    assert engine.orders.is_frozen

    await engine.updates.connect(lambda: None)
    engine.updates.note_closed()
    await engine.updates.apply()

    assert await finishing == "v2"


@pytest.mark.parametrize(("errors", "calls"), [((LOST, LOST), 2), ((ModelError("broken"),), 1)], ids=["lost twice", "broken"])
async def test_an_update_that_fails_ends_and_lets_requests_go_on(errors, calls):
    engine = Engine(*errors)
    finishing = await engine.ordered()

    for _ in range(calls):
        await engine.updates.apply()

    with pytest.raises(type(errors[0])):
        await finishing
    assert not engine.orders.is_frozen
    assert engine.workers.weights == Weights()
    assert (engine.num_updates("done"), engine.num_updates("failed")) == (0, 1)


async def test_one_update_is_applied_at_a_time():
    engine = Engine()
    finishing = await engine.ordered()
    await engine.checked("/other")

    with pytest.raises(AlreadyExists, match="is being applied"):
        await engine.updates.finish("v3")
    finishing.cancel()


async def test_an_update_that_is_begun_during_a_check_ends_the_one_before():
    """The command to finish names no path: it must not apply the weights of another caller."""
    engine = Engine()
    engine.updates.begin()
    checking = asyncio.create_task(engine.updates.check("/first"))
    await asyncio.sleep(0)

    await engine.checked("/second")

    with pytest.raises(FailedPrecondition, match="was begun while /first was checked"):
        await checking
    await engine.updates.finish("v2")
    assert engine.workers.order == [("/second", "v2")]


async def test_the_weights_that_would_be_applied_are_known():
    engine = Engine()
    await engine.checked("/new")
    path = with_weights(pb.EngineInfo(), engine.updates).checked_weights_path

    await engine.updates.finish("v2")

    assert path == "/new"
    assert with_weights(pb.EngineInfo(), engine.updates).checked_weights_path == ""


async def test_commands_out_of_order_are_refused():
    engine = Engine()

    with pytest.raises(FailedPrecondition, match="call StartWeightUpdate first"):
        await engine.updates.check("/new")
    with pytest.raises(FailedPrecondition, match="There are no weights to apply"):
        await engine.updates.finish("v2")
