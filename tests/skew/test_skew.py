"""Version skew: services of the previous release and present ones serve in one stack, in every mixture of two connected ones.

Each service in turn is upgraded under load, and then each is downgraded again in the same order. So every caller meets every
service of its own in both mixtures: (old, new) during the upgrades, (new, old) during the downgrades.
"""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from benchmarks.stack import free_port
from tests.chaos.answers import Answer
from tests.chaos.catalogue import Catalogue, Request, Sizes
from tests.chaos.client import Client
from tests.chaos.load import Load, Tally, ask_all
from tests.chaos.outage import Outage
from tests.skew.release import NoRelease, previous_release
from tests.skew.stack import SkewStack, Version
from tetrad import EngineArgs
from tetrad.stack.stack_settings import StackSettings

MODEL = "smollm2-135m-instruct"
AT_ONCE = 8
AT_ONCE_UNDER_CHANGE = 3  # the service that starts needs CPU time, too
TIMEOUT_S = 60.0
# Under load in each mixture: `make skew-test` makes it longer.
LOAD_S = float(os.environ.get("TEST_SKEW_SECONDS", "0.2"))
# Responses that a frontend keeps in its own memory.
LEFT_OUT = ("kept",)


@pytest.fixture(scope="module")
def release() -> Path:
    try:
        return previous_release()
    except NoRelease as reason:
        pytest.skip(str(reason))


def settings() -> StackSettings:
    args = EngineArgs(model=MODEL, device="sim", num_gpu_blocks_override=2048, max_logprobs=-1)
    return args.stack_settings(port=free_port(), responses_store=":memory:")


class Users:
    """Clients of a stack that know what it answered at first."""

    def __init__(self, url: str) -> None:
        self.tally = Tally()
        self._client = Client(url, Outage(), on_tokens=lambda _: None, timeout_s=TIMEOUT_S, news_timeout_s=0.0)
        self._requests: list[Request] = []
        self._expected: dict[str, Answer] = {}

    async def learn(self) -> None:
        """Ask everything once."""
        asked = Catalogue(MODEL, 1, Sizes(min_tokens=4, max_tokens=20, long_prompt_tokens=400)).make(27)
        self._requests = [request for request in asked if not request.name.startswith(LEFT_OUT)]
        for outcome in await ask_all(self._client, self._requests, at_once=AT_ONCE):
            assert outcome.error is None, (outcome.request.name, outcome.error)
            self._expected[outcome.request.name] = outcome.answer

    async def ask_again(self) -> None:
        """Ask everything once more."""
        for outcome in await ask_all(self._client, self._requests, at_once=AT_ONCE):
            self.tally.take(outcome, self._expected[outcome.request.name])

    def load(self) -> Load:
        """Begin to ask at random."""
        return Load(self._client, self._requests, self._expected, seed=1, at_once=AT_ONCE_UNDER_CHANGE)

    async def close(self) -> None:
        await self._client.close()


def loaded_from(pid: int, release: Path) -> bool:
    """Return whether a process runs the release's code."""
    return psutil.Process(pid).environ().get("PYTHONPATH") == str(release)


async def change_all(stack: SkewStack, users: Users, version: Version) -> list[Tally]:
    """Change each service under load, and ask everything of each mixture; return what the clients saw."""
    tallies = []
    for name in stack.service_names:
        load = users.load()
        await asyncio.sleep(LOAD_S / 2)
        await stack.change(name, version, timeout_s=TIMEOUT_S)
        await asyncio.sleep(LOAD_S / 2)
        await load.stop()
        tallies.append(load.tally)
        await users.ask_again()
    return tallies


async def upgrade_and_downgrade(stack: SkewStack, users: Users, release: Path) -> None:
    await users.learn()
    assert all(loaded_from(pid, release) for pid in stack.pids().values())

    up = await change_all(stack, users, "present")
    are_old = [loaded_from(pid, release) for pid in stack.pids().values()]
    down = await change_all(stack, users, "previous")

    assert not any(are_old)
    assert all(loaded_from(pid, release) for pid in stack.pids().values())
    failures = [failure for tally in (*up, *down, users.tally) for failure in tally.failures]
    assert [(each.outcome.request.name, each.verdict, each.outcome.error) for each in failures] == []
    assert all(tally.verdicts["equal"] for tally in (*up, *down))


def test_upgrades_and_downgrades_of_each_service_under_load_lose_and_change_nothing(release, smollm2):
    async def run() -> None:
        given = settings()
        users = Users(f"http://127.0.0.1:{given.frontend.port}")
        async with SkewStack(given, release) as stack:
            await stack.start(timeout_s=TIMEOUT_S)
            try:
                await upgrade_and_downgrade(stack, users, release)
            finally:
                await users.close()

    asyncio.run(run())
