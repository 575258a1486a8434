"""Load on a project: greedy requests, compared with the answers of the undisturbed stack, with the clients of tests/chaos."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from tests.chaos.answers import Answer
from tests.chaos.catalogue import COMPLETIONS, Request
from tests.chaos.client import Client
from tests.chaos.load import Load, Tally, ask_all
from tests.chaos.outage import Outage
from tests.compose.project import Project

AT_ONCE = 4
_ANSWER_TIMEOUT_S = 180.0
FORGOTTEN_AFTER_S = 30.0
"""A connection that brings nothing for so long counts as broken where the frontend's container ended: a container engine may
accept it while the port moves to the next container, and then forget it. Other services may be away for longer than this."""
_WORDS = ("river", "mill", "old", "counts", "grain", "hums", "of", "harvests", "winters", "lamps", "and", "dogs")


def greedy_requests(number: int, *, max_tokens: int) -> list[Request]:
    """Return requests whose answers follow from the model alone; every other one is a stream."""
    rng = random.Random(1)
    return [_request(index, " ".join(rng.choices(_WORDS, k=rng.randint(3, 40))), max_tokens) for index in range(number)]


def _request(index: int, prompt: str, max_tokens: int) -> Request:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    if index % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Request(f"greedy-{index}", COMPLETIONS, body)


class Loaded:
    """A project, and clients that ask it.

    Args:
        project: ready.
        requests: to choose from.
    """

    def __init__(self, project: Project, requests: list[Request]) -> None:
        self._project, self._requests = project, requests
        self._expected: dict[str, Answer] = {}

    async def learn(self) -> list[str]:
        """Ask everything undisturbed, twice; return what went wrong, or differed by itself."""
        async with self._client(lambda _: None) as (client, _):
            first = await ask_all(client, self._requests, at_once=AT_ONCE)
            again = await ask_all(client, self._requests, at_once=AT_ONCE)
        self._expected = {outcome.request.name: outcome.answer for outcome in first}
        tally = Tally()
        for outcome in (*first, *again):
            tally.take(outcome, self._expected[outcome.request.name])
        return [f"{failure.outcome.request.name}: {failure.verdict} {failure.outcome.error}" for failure in tally.failures]

    async def strike(
        self, fault: Callable[[Outage], None], *, tokens_after: int = 100, silence_timeout_s: float | None = None
    ) -> Tally:
        """Let `fault` happen, in a thread, under load; go on until tokens come again and stop; return what the clients saw.

        Args:
            fault: kills or replaces containers.
            tokens_after: pieces of streams to wait for, before and behind it.
            silence_timeout_s: see Client; None: as long as an answer may take.
        """
        came = _Tokens()
        async with self._client(came.note, silence_timeout_s) as (client, lives):
            load = Load(client, self._requests, self._expected, seed=1, at_once=AT_ONCE)
            await came.wait_for(tokens_after)
            await asyncio.to_thread(fault, lives)
            await came.wait_for(tokens_after)
            await load.stop()
        return load.tally

    @contextlib.asynccontextmanager
    async def _client(
        self, on_tokens: Callable[[int], None], silence_timeout_s: float | None = None
    ) -> AsyncIterator[tuple[Client, Outage]]:
        lives = Outage()
        client = Client(
            self._project.url,
            lives,
            on_tokens=on_tokens,
            timeout_s=_ANSWER_TIMEOUT_S,
            silence_timeout_s=silence_timeout_s,
        )
        try:
            yield client, lives
        finally:
            await client.close()


class _Tokens:
    """Counts pieces of streams."""

    def __init__(self) -> None:
        self._count = 0
        self._came = asyncio.Event()

    def note(self, _: int) -> None:
        self._count += 1
        self._came.set()

    async def wait_for(self, number: int) -> None:
        """Wait until so many more have come."""
        enough = self._count + number
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            while self._count < enough:
                self._came.clear()
                await self._came.wait()
