"""Disturbs a walk's services: caches are reset, engines pause and sleep, services are killed, requests end."""

import asyncio
import random

from tests.combinations.asked import Client
from tests.combinations.drawing import Drawing
from tests.combinations.leavers import Leavers
from tests.combinations.stack import Stack
from tetrad.frontend.engine.admin_client import PauseMode
from tetrad.services.errors import TetradError, Unavailable, Unsupported

NUM_REQUESTS = 16
"""Of the crowd."""


class Disturbances:
    """What happens to an engine during a walk, in a random order."""

    def __init__(self, rng: random.Random, client: Client, stack: Stack, drawing: Drawing) -> None:
        self._rng, self._client, self._stack, self._drawing = rng, client, stack, drawing
        self._leavers = Leavers(rng, client, drawing)
        self.open = asyncio.Event()  # unset while requests are refused
        self.open.set()
        self.log: list[str] = []
        self.aborted: set[int] = set()

    async def run(self, count: int) -> None:
        """Disturb so many times."""
        ways = [self._reset, self._pause, self._sleep, self._kill, self._adapters, self._refused, self._cancelled, self._abort]
        ways += [self._leavers.leave, self._leavers.be_late, self._update_weights]
        for _ in range(count):
            await asyncio.sleep(self._rng.choice([0, 0.02, 0.1]))
            way = self._rng.choice(ways)
            self.log.append(way.__name__)
            for _ in range(100):
                try:
                    await way()
                    break
                except Unavailable as error:
                    # An engine core that was killed starts again.
                    self.log.append(str(error))
                    await asyncio.sleep(0.1)

    async def _reset(self) -> None:
        await self._client.llm.engine_admin.reset_prefix_cache(reset_running_requests=self._rng.random() < 0.5)

    async def _pause(self) -> None:
        admin = self._client.llm.engine_admin
        mode: PauseMode = self._rng.choice(["keep", "keep", "wait", "wait", "abort"])
        if mode == "abort":
            self.aborted.update(range(NUM_REQUESTS))
        await admin.pause(mode, clear_cache=self._rng.random() < 0.5)
        await asyncio.sleep(0.03)
        await admin.resume()

    async def _sleep(self) -> None:
        self.open.clear()
        admin = self._client.llm.engine_admin
        await admin.sleep(self._rng.choice([0, 1]), "keep")
        await asyncio.sleep(0.03)
        if self._rng.random() < 0.5:
            await admin.wake_up(["weights"])
        await admin.wake_up()
        self.open.set()

    async def _update_weights(self) -> None:
        """By the same weights: answers do not change, but everything is computed again."""
        try:
            await self._client.llm.engine_admin.weights.reload()
        except Unsupported as error:  # experts that several engines share
            self.log.append(str(error))

    async def _kill(self) -> None:
        if sum(each.startswith("_kill") for each in self.log) < 3:
            self.log.append(await self._stack.kill(self._rng))

    async def _adapters(self) -> None:
        for adapter in self._drawing.checkpoint.adapters:
            try:
                if self._rng.random() < 0.5:
                    await self._client.llm.adapters.unload(adapter.lora_int_id)
                else:
                    await self._client.llm.adapters.load(adapter)
            except TetradError as error:
                self.log.append(str(error))

    async def _refused(self) -> None:
        body = {"model": "base", "prompt": "abc", "max_tokens": 4, "temperature": 3}
        answer = await self._client.http.post("/v1/completions", json=body)
        assert answer.status_code in (400, 429), answer.text

    async def _abort(self) -> None:
        """End some requests of the crowd: they have the first tokens of their answers."""
        numbers = self._rng.sample(range(NUM_REQUESTS), 2)
        self.aborted.update(numbers)
        await self._client.llm.abort([f"crowd-{number}" for number in numbers])

    async def _cancelled(self) -> None:
        calls = [self._drawing.request() for _ in range(4)]
        tasks = [asyncio.ensure_future(call.answer(self._client, f"cancelled-{i}")) for i, call in enumerate(calls)]
        await asyncio.sleep(self._rng.choice([0, 0.01, 0.05]))
        await self._client.llm.abort([f"cancelled-{i}" for i in range(0, 4, 2)])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
