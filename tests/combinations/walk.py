"""One random walk: a crowd of requests while an engine is disturbed in every way; each answer is that of the request alone."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from tests.combinations.apis import WAIT_S
from tests.combinations.asked import Asked, Client
from tests.combinations.checkpoints import Checkpoint
from tests.combinations.compared import difference, started
from tests.combinations.disturbances import NUM_REQUESTS, Disturbances
from tests.combinations.drawing import Drawing
from tests.combinations.options import Options, client_of, draw_options
from tests.combinations.speech import SpeechDrawing
from tetrad.frontend.request.sampling_params import RequestOutputKind

CHANGE_VALUES = ("kv_cache_dtype", "cpu_kernels")
"""Settings of a worker that may change the last digits, and so tokens: they are the same alone."""
REFUSALS = ("The engine sleeps", "unfinished requests; at most", "requests are waiting; this engine")
"""Of requests that are sent again: the engine has fallen asleep, or has enough of them."""


@dataclass
class Walk:
    """A walk of a seed.

    Attributes:
        checkpoint: the model.
        seed: of requests, settings and disturbances; not of their times.
    """

    checkpoint: Checkpoint
    seed: int
    num_disturbances: int = 4

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.parser = self._rng.choice(["none", "deepseek_r1", "qwen3"])
        drawing = SpeechDrawing if self.checkpoint.transcribes else Drawing
        self.drawing = drawing(self._rng, self.checkpoint, reasons=self.parser != "none")
        self.chats: list[list[Asked]] = [[self.drawing.request()] for _ in range(NUM_REQUESTS)]
        self.options = draw_options(self._rng, self.checkpoint, self.parser)
        self.log: list[str] = []
        self.aborted: set[int] = set()

    async def run(self) -> list[str]:
        """Return the differences between answers in the crowd and alone."""
        expected = await self.alone()
        found = await self.crowd()
        differences = []
        for number, (chat, others) in enumerate(zip(found, expected, strict=True)):
            for turn, (answer, other) in enumerate(zip(chat, others, strict=False)):
                was_aborted = number in self.aborted and turn == len(chat) - 1
                if text := difference(*(started(answer, other) if was_aborted else (answer, other))):
                    differences.append(f"request {number}, turn {turn}: {text}")
        return differences

    async def alone(self) -> list[list[Any]]:
        """Return the answers, one at a time, of an engine that keeps nothing; some requests are followed by others."""
        worker = {name: value for name, value in self.options.worker.items() if name in CHANGE_VALUES}
        options = Options(
            {"enable_prefix_caching": False, "num_gpu_blocks_override": 3000, "max_loras": 1},
            worker,
            {"reasoning_parser": self.parser},
        )
        answers: list[list[Any]] = []
        async with client_of(self.checkpoint, options) as (client, _):
            for chat in self.chats:
                answers.append([])
                for call in chat:  # grows
                    async with asyncio.timeout(WAIT_S):
                        answers[-1].append(await call.answer(client, f"alone-{len(answers)}"))
                    if len(chat) < 3 and self._rng.random() < 0.4:
                        turn = self.drawing.next_turn(call, answers[-1][-1])
                        chat.extend([] if turn is None else [turn])
        return answers

    async def crowd(self) -> list[list[Any]]:
        """Return the answers of the disturbed engine to all at once."""
        async with client_of(self.checkpoint, self.options) as (client, stack):
            disturbances = Disturbances(self._rng, client, stack, self.drawing)
            self.log, self.aborted = disturbances.log, disturbances.aborted

            async def ask(call: Asked, request_id: str, kind: RequestOutputKind) -> Any:
                while True:
                    await disturbances.open.wait()
                    answer = await call.answer(client, request_id, kind)
                    if not any(text in str(answer) for text in REFUSALS):
                        return answer
                    await asyncio.sleep(0.02)

            async def one(number: int, delay: float, kind: RequestOutputKind) -> list[Any]:
                await asyncio.sleep(delay)
                answers: list[Any] = []
                for call in self.chats[number]:
                    answers.append(await ask(call, f"crowd-{number}", kind))
                    if number in disturbances.aborted:
                        break
                return answers

            kinds = list(RequestOutputKind)
            calls = [one(i, self._rng.random() * 0.1, self._rng.choice(kinds)) for i in range(len(self.chats))]
            async with asyncio.timeout(WAIT_S):
                disturbed = asyncio.create_task(disturbances.run(self.num_disturbances))
                try:
                    found = await asyncio.gather(*calls)
                    await disturbed
                finally:
                    disturbed.cancel()
                await client.llm.wait_idle()
                await self._check_idle(client)
            return found

    async def _check_idle(self, client: Client) -> None:
        for _ in range(100):
            loads = [load and load.scheduler for load in await client.llm.engine_admin.loads_known()]
            busy = [stats and (stats.num_running, stats.num_waiting, stats.kv_cache_usage) for stats in loads]
            if all(each == (0, 0, 0.0) for each in busy):
                assert (client.llm.admission.num_requests, client.llm.admission.num_queued_tokens) == (0, 0)
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"still busy: {busy}")
