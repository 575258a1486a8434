"""Engine cores die, return and stall at random while requests run: every request has its tokens, and nothing is left behind."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from tests.frontend.fakes import TEXT, FakeEngine, running_engine
from tests.frontend.routing.disaggregation.conftest import Asking
from tests.grids import grid
from tetrad.v1 import types_pb2

ROLES = ["producer", "producer", "consumer", "consumer"]


@pytest.fixture
async def engines(sockets, carrier):
    async with AsyncExitStack() as exits:
        found = []
        for number, role in enumerate(ROLES):
            fake = FakeEngine(sockets / f"e{number}", engine_index=number)
            fake.kv_role, fake.step_delay_s = types_pb2.KvRole.Value(f"KV_ROLE_{role.upper()}"), 0.002
            found.append(await exits.enter_async_context(running_engine(fake, carrier)))
        yield found


async def disturb(engines, rng):
    """Kill, restart, pause and continue engine cores, seldom enough that no request is blamed; a consumer is always there."""
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.25))
        fake = rng.choice(engines[:3])
        if fake._server is None:
            await fake.start()
        elif rng.random() < 0.4:
            await fake.kill()
        elif fake._permits is None:
            fake.pause()
        else:
            await fake.allow(None)


@pytest.mark.parametrize("seed", grid(range(3), lambda seed: seed == 0))
async def test_every_request_has_its_tokens(engines, connect, seed):
    rng = random.Random(seed)
    targets = tuple(each.target for each in engines)
    settings = {"min_remote_prefill_tokens": 16, "remote_prefill_timeout_s": 0.5, "engine_admin_targets": ()}
    asking = Asking(await connect(engine_targets=targets, **settings))
    disturbing = asyncio.create_task(disturb(engines, rng))

    async def one(number):
        await asyncio.sleep(rng.uniform(0, 2))
        n, length = rng.randint(1, 3), rng.randint(1, 40)
        task = asking.start(f"r{number}", "x" * rng.randint(1, 100), n=n, max_tokens=length)
        if rng.random() < 0.2:
            await asyncio.sleep(rng.uniform(0, 0.1))
            await asking.llm.abort(f"r{number}")
            _, last = await task
            assert last.finished
        else:
            assert (await task)[0] == [(TEXT * 2)[:length]] * n

    async with asyncio.timeout(60):
        await asyncio.gather(*(one(number) for number in range(80)))
    disturbing.cancel()

    backends = asking.llm.backends
    assert asking.llm.num_unfinished_requests == len(backends._prefills) == 0
    assert [each.num_unfinished for each in backends.engines.engines] == [0] * 4
    assert [each.load.num_expected for each in backends.engines.engines] == [0] * 4
    assert not backends.requests._active
