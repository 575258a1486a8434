"""Random histories of concurrent operators' commands, and of crashes between them: all answers fit one order."""

import asyncio
import random
from dataclasses import replace
from typing import NamedTuple

import grpc
import pytest

from tests.grids import grid
from tests.linearizability import Recorder, order_of, told
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import engine_core_pb2 as pb


class Engine(NamedTuple):
    """An engine as operators see it. An order to sleep that fails is seen until it does: it is given, and given up.

    Attributes:
        pending, withdrawn: orders that fail, as (number, level): still to come, and ended by a wake up.
    """

    is_paused: bool = False
    level: int = 0
    pending: frozenset = frozenset()
    withdrawn: frozenset = frozenset()

    @property
    def levels(self):
        return {level for _, level in self.pending} | ({self.level} if self.level else set())


def after(state, call):
    """Return what the engine may be after a call with this answer."""
    match call.name, call.answer:
        case "is_paused", answer:
            return [state] if answer == (state.is_paused or bool(state.levels)) else []
        case "pause", "done":
            return [state._replace(is_paused=True)]
        case "resume", "done":
            return [] if state.levels else [state._replace(is_paused=False)]
        case "resume", "ALREADY_EXISTS":
            return [state] if state.levels else []
        case "sleep", "done":
            return [state._replace(level=call.argument)] if state.levels <= {call.argument} else []
        case "sleep", "ALREADY_EXISTS":
            return [state] if state.levels - {call.argument} else []
        case "give order", _:
            return [state._replace(pending=state.pending | {call.argument})] if state.levels <= {call.argument[1]} else []
        case "give up", _:
            order, given = {call.argument}, state.pending | state.withdrawn
            given_up = state._replace(pending=state.pending - order, withdrawn=state.withdrawn - order)
            return [given_up] if order <= given else []
        case "wake_up", "done":
            return [Engine(withdrawn=state.withdrawn | state.pending)]
    return []


def in_two(number, call):
    """Return a call, or the two ends of an order to sleep that failed."""
    if call.name != "sleep" or call.answer not in ("UNAVAILABLE", "FAILED_PRECONDITION"):
        return [call]
    order = (number, call.argument)
    return [replace(call, name="give order", argument=order), replace(call, name="give up", argument=order)]


class Operator:
    """Gives orders at random and looks what they came to."""

    def __init__(self, stack, recorder, rng):
        self._stack, self._recorder, self._rng = stack, recorder, rng

    async def run(self, num_calls):
        for _ in range(num_calls):
            names = ["is_paused", "pause", "resume", "sleep", "wake_up"]
            name = self._rng.choices(names, [5, 2, 2, 2, 2])[0]
            level = self._rng.choice([1, 2]) if name == "sleep" else 0
            await self._recorder.note(name, level, self._answer(name, level))

    async def _answer(self, name, level):
        admin = self._stack.admin
        try:
            match name:
                case "is_paused":
                    return (await self._stack.load()).paused
                case "pause":
                    await admin.Pause(pb.PauseRequest(mode=pb.PAUSE_MODE_KEEP))
                case "resume":
                    await admin.Resume(pb.ResumeRequest())
                case "sleep":
                    order = pb.EngineCoreAdminServiceSleepRequest(level=level, mode=pb.PAUSE_MODE_KEEP)
                    await admin.Sleep(order)
                case "wake_up":
                    await admin.WakeUp(pb.EngineCoreAdminServiceWakeUpRequest())
        except grpc.RpcError as error:
            return from_rpc_error(error).code.name
        return "done"


async def disturb(worker, rng):
    """Let steps take long, so that orders wait for them, and some orders fail."""
    while True:
        worker.go.clear()
        await asyncio.sleep(rng.random() * 0.01)
        if rng.random() < 0.3:
            worker.sleep_error = FailedPrecondition("no room on the host")
        worker.go.set()
        await asyncio.sleep(rng.random() * 0.003)


@pytest.mark.parametrize("seed", grid(range(20), lambda seed: seed < 10))
async def test_orders_have_one_order(stack, seed):
    rng, recorder = random.Random(seed), Recorder()
    client = await stack.client()
    client.add(1, [1], max_tokens=10_000)

    disturbing = asyncio.create_task(disturb(stack.worker, rng))
    async with asyncio.timeout(60):
        await asyncio.gather(*(Operator(stack, recorder, rng).run(12) for _ in range(4)))
    disturbing.cancel()

    calls = [each for number, call in enumerate(recorder.calls) for each in in_two(number, call)]
    assert order_of(calls, Engine(), after) is not None, told(recorder.calls)


class Kept(NamedTuple):
    """An engine core whose worker keeps the pause for the next one.

    Attributes:
        kept: what the worker has.
        given: numbers of orders that this engine core took; each is kept before it is answered.
    """

    is_paused: bool = False
    kept: bool = False
    given: frozenset = frozenset()


def after_crashes(state, call):
    """Return what engine core and worker may be after a call, or after a part of an order."""
    match call.name:
        case "is_paused":
            return [state] if call.answer in (None, state.is_paused) else []
        case "give order":
            number, pauses = call.argument
            return [state._replace(is_paused=pauses, given=state.given | {number})]
        case "keep order":
            return [state._replace(kept=state.is_paused)] if call.argument in state.given else []
    return [Kept(is_paused=state.kept, kept=state.kept)]


def given_and_kept(number, call):
    """Return a call, or the two effects of an order, which both precede its answer."""
    if call.name not in ("pause", "resume"):
        return [call]
    order = replace(call, name="give order", argument=(number, call.name == "pause"))
    return [order, replace(call, name="keep order", argument=number)]


@pytest.mark.parametrize("seed", range(6))
async def test_pauses_have_one_order_across_crashes_of_the_engine_core(stack, seed):
    """An order that was answered outlives the engine core; one that was not, may. A resume that was answered is final."""
    rng, recorder = random.Random(seed), Recorder()
    await stack.client()

    async def give(name):
        try:
            if name == "is_paused":
                return (await stack.load()).paused
            await (stack.admin.Pause(pb.PauseRequest()) if name == "pause" else stack.admin.Resume(pb.ResumeRequest()))
        except grpc.RpcError:
            return None  # the engine core crashed meanwhile, or is not there
        return "done"

    async def operate(names):
        for name in names:
            await recorder.note(name, 0, give(name))

    async def crash():
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        await stack.crash_engine_core()

    async with asyncio.timeout(60):
        for _ in range(2):
            orders = [rng.choices(["is_paused", "pause", "resume"], k=5) for _ in range(3)]
            await asyncio.gather(recorder.note("crash", 0, crash()), *map(operate, orders))
            await operate(["is_paused", rng.choice(["pause", "resume"]), "is_paused"])

    calls = [each for number, call in enumerate(recorder.calls) for each in given_and_kept(number, call)]
    assert order_of(calls, Kept(), after_crashes) is not None, told(recorder.calls)
