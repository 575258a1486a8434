"""Operators' commands to all engine cores, where one of them does not answer or refuses."""

import asyncio

import pytest

from tests.frontend.fakes import FakeEngine
from tetrad.frontend.llm.profiling import Profiling
from tetrad.services.errors import AlreadyExists, NotFound, Unavailable
from tetrad.services.observability.profiling import StepProfiler

NOT_LONG_S = 5.0
"""Less than what an order may take."""


@pytest.fixture
async def second(sockets):
    fake = FakeEngine(sockets / "e2", engine_index=1)
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
def targets(engine, second):
    both = (engine.target, second.target)
    return {"engine_targets": both, "engine_admin_targets": both}


@pytest.mark.parametrize(
    ("order", "state"), [("pause", "is_paused"), ("pause", "is_sleeping"), ("sleep", "is_sleeping")], ids="-".join
)
async def test_an_engine_that_does_not_say_how_it_is_is_named(serve_frontend, engine, second, targets, order, state):
    second.is_silent = True

    async with serve_frontend(**targets) as frontend:
        engine.orders.append((order,))
        async with asyncio.timeout(NOT_LONG_S):
            answer = await frontend.http.get(f"/{state}")

    assert answer.json() == {state: True, "not_answering": ["engine core 1"]}


@pytest.mark.parametrize("state", ["is_paused", "is_sleeping"])
async def test_engines_of_which_none_says_how_it_is_are_a_503(serve_frontend, engine, second, targets, state):
    engine.is_silent = second.is_silent = True

    async with serve_frontend(**targets) as frontend, asyncio.timeout(NOT_LONG_S):
        answer = await frontend.http.get(f"/{state}")

    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "No engine core answered within 0.8 s; try again."
    assert answer.headers["retry-after"] == "1"


async def test_adapters_are_listed_over_several_messages_of_each_engine_and_each_once(connect, engine, second, targets):
    engine.lora_ids, second.lora_ids = [1, 2, 3, 4, 5], [4, 5, 6]
    llm = await connect(**targets)

    found = await llm.engine_admin.list_loras()

    assert sorted(each.lora_int_id for each in found) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("refusal", [AlreadyExists("somebody records"), Unavailable("no worker")])
async def test_a_profile_that_one_engine_refuses_is_stopped_where_it_began(serve_frontend, engine, second, targets, refusal):
    second.profile_refusal = refusal

    async with serve_frontend(**targets) as frontend:
        refused = await frontend.http.post("/start_profile")
        second.profile_refusal = None
        accepted = await frontend.http.post("/start_profile")

    assert refused.json()["error"]["message"] == refusal.message
    assert accepted.json() == {"status": "recording"}
    start, stop = ("start_profile",), ("stop_profile",)
    assert (engine.orders, second.orders) == ([start, stop, start], [start, start])


async def test_a_profile_whose_caller_leaves_before_it_began_is_stopped(tmp_path):
    class Hanging:
        async def start_profile(self, prefix, delay, most):
            await asyncio.get_running_loop().create_future()

    own = StepProfiler("frontend", tmp_path, lambda: ())
    starting = asyncio.create_task(Profiling(own, lambda: [Hanging()]).start())
    await asyncio.sleep(0)

    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    with pytest.raises(NotFound):
        own.stop()
    assert list(tmp_path.iterdir()) == []
