"""Load: clients that send random requests of a catalogue, some of which disconnect in the middle, and check the answers.

Owns the tally of a run. Knows clients and answers; knows nothing of faults.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.answers import Answer, Verdict, is_beginning, judge
from tests.chaos.catalogue import Request
from tests.chaos.client import Client, Outcome

_SHARE_THAT_LEAVE = 0.1


@dataclass(frozen=True)
class Failure:
    """A request whose answer is not that of the undisturbed run."""

    verdict: Verdict
    outcome: Outcome
    expected: Answer


@dataclass
class Tally:
    """What the clients saw.

    Attributes:
        verdicts: of answers, by name.
        failures: all that are not equal.
        num_asked, num_left, num_retries: requests, those whose client left, attempts after a killed frontend.
        longest_s: the longest time to an answer.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    num_asked: int = 0
    num_left: int = 0
    num_retries: int = 0
    longest_s: float = 0.0

    def take(self, outcome: Outcome, expected: Answer, *, tolerance: float = 0.0) -> None:
        """Judge one outcome."""
        self.num_left += outcome.left
        self.num_retries += outcome.num_retries
        self.longest_s = max(self.longest_s, outcome.took_s)
        verdict = _judge(outcome, expected, tolerance)
        self.verdicts[verdict] += 1
        if verdict != "equal":
            self.failures.append(Failure(verdict, outcome, expected))


def _judge(outcome: Outcome, expected: Answer, tolerance: float) -> Verdict:
    if outcome.error is not None:
        return "lost"
    if not all(is_beginning(expected, answer, tolerance=tolerance) for answer in outcome.abandoned):
        return "different"
    if outcome.left:
        return "equal" if is_beginning(expected, outcome.answer, tolerance=tolerance) else "different"
    return judge(expected, outcome.answer, tolerance=tolerance)


async def ask_all(client: Client, requests: Sequence[Request], *, at_once: int) -> list[Outcome]:
    """Ask each request once, so many at the same time; return the outcomes in order."""
    room = asyncio.Semaphore(at_once)

    async def ask(request: Request) -> Outcome:
        async with room:
            return await client.ask(request)

    return await asyncio.gather(*(ask(request) for request in requests))


class Load:
    """Asks until told to stop.

    Args:
        client: that asks.
        expected: the requests' names and their answers in the undisturbed run.
        requests: to choose from.
        seed: of the choices.
        at_once: requests under way at any time.
        tolerance: see `judge`.
    """

    def __init__(
        self,
        client: Client,
        requests: Sequence[Request],
        expected: Mapping[str, Answer],
        *,
        seed: int,
        at_once: int,
        tolerance: float = 0.0,
    ) -> None:
        self.tally = Tally()
        self._client, self._requests, self._expected = client, requests, expected
        self._rng = random.Random(seed)
        self._tolerance = tolerance
        self._stopping = False
        self._bursts = set[asyncio.Task[None]]()
        self._tasks = [asyncio.create_task(self._ask_on(), name=f"client {number}") for number in range(at_once)]

    async def stop(self) -> None:
        """Let every client finish what it asked; each has its own time limit."""
        self._stopping = True
        await asyncio.gather(*self._tasks, *self._bursts)

    def burst(self, number: int) -> None:
        """Ask at once as many requests as are missing to have so many under way."""
        missing = max(number - len(self._tasks) - len(self._bursts), 0)
        for index in range(missing):
            task = asyncio.create_task(self._ask_one(), name=f"burst {index}")
            self._bursts.add(task)
            task.add_done_callback(self._bursts.discard)

    async def _ask_on(self) -> None:
        while not self._stopping:
            await self._ask_one()

    async def _ask_one(self) -> None:
        request = self._rng.choice(self._requests)
        leave_after = self._rng.randint(1, 200) if self._rng.random() < _SHARE_THAT_LEAVE else None
        self.tally.num_asked += 1
        outcome = await self._client.ask(request, leave_after=leave_after)
        self.tally.take(outcome, self._expected[request.name], tolerance=self._tolerance)
