"""Run: one chaos run: undisturbed answers first, then faults under load, then every check.

The only file that knows all others, in the order of events. docs/recovery.md describes its checks.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import report
from tests.chaos.answers import Answer
from tests.chaos.catalogue import Catalogue, Request, Sizes
from tests.chaos.checks import MARK, StackState, find_exceptions, find_leaks, find_remains, take_state, wait_idle
from tests.chaos.client import Client
from tests.chaos.faults import Wronged, strike
from tests.chaos.load import Load, Tally, ask_all
from tests.chaos.media_catalogue import MediaCatalogue
from tests.chaos.recovery import RecoveryTimes, Struck, TokenClock, longest_silence, recovery_times
from tests.chaos.schedule import Fault
from tests.chaos.speech_catalogue import SpeechCatalogue
from tests.chaos.stack import ChaosStack
from tetrad.stack.stack_settings import StackSettings

_HOOKS = str(Path(__file__).with_name("hooks"))
_PROGRESS_S = 10.0
_IDLE_TIMEOUT_S = 20.0
# A supervisor that stands still tells late of what has died.
_NEWS_TIMEOUT_S = 40.0


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Args:
        settings: of the stack.
        sizes: of the requests.
        seed: of requests, load and faults.
        num_requests: different requests in the catalogue.
        at_once: requests under way at any time.
        warm_up_rounds: undisturbed runs of the catalogue, before the faults and again behind them.
        answer_timeout_s: after which an answer counts as lost.
        duration_s: of the load under faults, at least; it outlasts the last fault.
        tolerance: by how much log-probabilities and values of embeddings may differ from the undisturbed run's.
        catalogue: makes the requests of a model, a seed and sizes.
        settle_s: before each look at what processes hold.
        memory_growth: see `find_leaks`; it takes several rounds until memory stays as it is.
        burst: requests that a burst asks at once.
        after_last_fault_s: how long the load goes on behind the last fault, so that the recovery from it is seen.
    """

    settings: StackSettings
    sizes: Sizes
    seed: int
    num_requests: int
    at_once: int
    warm_up_rounds: int
    answer_timeout_s: float
    duration_s: float
    tolerance: float = 0.0
    catalogue: Callable[[str, int, Sizes], Catalogue | MediaCatalogue | SpeechCatalogue] = Catalogue
    settle_s: float = 1.0
    memory_growth: float = 1.05
    burst: int = 300
    after_last_fault_s: float = 5.0


@dataclass
class Result:
    """What came of a run.

    Attributes:
        tally: of the load under faults and of the undisturbed repetitions.
        struck: faults, in the order in which they began.
        recovery: times to recovery by service.
        silence: the longest time without tokens, and the fault behind it.
        num_accepted_drafts: before the faults.
        problems: one line for everything that is wrong; empty if all is well.
    """

    tally: Tally = field(default_factory=Tally)
    struck: list[Struck] = field(default_factory=list)
    recovery: Mapping[str, RecoveryTimes] = field(default_factory=dict)
    silence: tuple[float, Struck] | None = None
    num_accepted_drafts: int = 0
    problems: list[str] = field(default_factory=list)


class Run:
    """One run.

    Args:
        plan: what to do.
        stack: ready; its processes carry `mark`.
        mark: see `checks.MARK`.
    """

    def __init__(self, plan: Plan, stack: ChaosStack, mark: str) -> None:
        self.result = Result()
        self._plan, self._stack, self._mark = plan, stack, mark
        self._clock = TokenClock()
        self._client = Client(
            stack.url,
            stack.lives,
            on_tokens=self._clock,
            timeout_s=plan.answer_timeout_s,
            news_timeout_s=_NEWS_TIMEOUT_S,
            disk=stack.disk,
        )
        self._load: Load | None = None
        self._requests: list[Request] = []
        self._expected: dict[str, Answer] = {}

    async def go(self, faults: Sequence[Fault]) -> None:
        """Do everything and report it."""
        bursts = any(fault.kind == "burst" for fault in faults)
        try:
            await self._learn_answers()
            await self._repeat(self._plan.warm_up_rounds - 1, bursts=bursts)
            before = await self._look("before the faults")
            await self._disturb(faults)
            await self._stack.wait_ready(self._plan.answer_timeout_s)
            await self._repeat(self._plan.warm_up_rounds, bursts=bursts)
            after = await self._look("after the faults")
            self.result.problems += find_leaks(before, after, memory_growth=self._plan.memory_growth)
        finally:
            await self._client.close()
        report.say()
        report.say_faults(self.result.struck)
        report.say_tally(self.result.tally)
        report.say_recovery(self.result.recovery, self.result.silence)
        report.say_states(before, after)

    async def _learn_answers(self) -> None:
        """Ask everything once undisturbed."""
        plan = self._plan
        catalogue = plan.catalogue(plan.settings.frontend.served_model_names[0], plan.seed, plan.sizes)
        await self._learn(catalogue.make(plan.num_requests))
        stopped = [catalogue.stopped(request, self._expected[request.name]) for request in self._requests]
        await self._learn([request for request in stopped if request is not None])
        for request in self._requests[: plan.num_requests]:
            answer = self._expected[request.name]
            if (predicted := catalogue.predicted(request, answer)) is not None:
                self._requests.append(predicted)
                self._expected[predicted.name] = answer

    async def _learn(self, requests: Sequence[Request]) -> None:
        for outcome in await ask_all(self._client, requests, at_once=self._plan.at_once):
            if outcome.error is not None:
                raise AssertionError(f"{outcome.request.name} failed undisturbed: {outcome.error}\n{outcome.request.body}")
            self._requests.append(outcome.request)
            self._expected[outcome.request.name] = outcome.answer

    async def _repeat(self, rounds: int, *, bursts: bool) -> None:
        """Ask everything again while nothing disturbs; what differs is a problem.

        That brings the services' memory to its level, with bursts to that of a burst, before the faults and again behind them.
        """
        plan, tally = self._plan, Tally()
        loads = [(self._requests, plan.at_once)] * rounds
        if bursts:
            loads.append((self._requests * (2 * plan.burst // len(self._requests) + 1), plan.burst))
        for requests, at_once in loads:
            for outcome in await ask_all(self._client, requests, at_once=at_once):
                tally.take(outcome, self._expected[outcome.request.name], tolerance=plan.tolerance)
        if tally.failures:
            report.say_failures(tally.failures)
            self.result.problems.append(f"{len(tally.failures)} answers were not the same though nothing disturbed them")

    async def _look(self, when: str) -> StackState:
        load = await wait_idle(self._stack.engine_admin_target, _IDLE_TIMEOUT_S)
        if not load.is_idle:
            self.result.problems.append(f"The engine core is not idle {when}: {load}")
        self.result.num_accepted_drafts = self.result.num_accepted_drafts or load.num_accepted_drafts
        return await take_state(self._stack, self._mark, settle_s=self._plan.settle_s)

    async def _disturb(self, faults: Sequence[Fault]) -> None:
        """Let faults strike a loaded stack, and let every request come to its end."""
        plan = self._plan
        # Nobody answers while everything stands still.
        self._client.timeout_s = plan.answer_timeout_s + max(f.lasts_s if f.kind == "freeze-stack" else 0 for f in faults)
        load = self._load = Load(
            self._client,
            self._requests,
            self._expected,
            seed=plan.seed,
            at_once=plan.at_once,
            tolerance=plan.tolerance,
        )
        self.result.tally = load.tally  # a run that is interrupted shows its failures, too
        start, duration_s = time.monotonic(), max(plan.duration_s, faults[-1].at_s + plan.after_last_fault_s)
        showing = asyncio.create_task(self._show_progress(start, duration_s, load))
        striking = [asyncio.create_task(self._strike(fault, start)) for fault in faults]
        try:
            await asyncio.sleep(duration_s)
            await asyncio.gather(*striking)
            ended_at = time.monotonic()
            await load.stop()
        finally:
            for task in (showing, *striking):
                task.cancel()
        self.result.struck.sort(key=lambda each: each.at)
        self.result.recovery = recovery_times(self.result.struck, self._clock, ended_at)
        self.result.silence = longest_silence(self.result.struck, self._clock)
        if load.tally.failures:
            self.result.problems.append(f"{len(load.tally.failures)} answers are lost, duplicated or different")

    async def _strike(self, fault: Fault, start: float) -> None:
        await asyncio.sleep(start + fault.at_s - time.monotonic())
        if fault.kind == "burst":
            assert self._load is not None
            self._load.burst(self._plan.burst)
            await asyncio.sleep(fault.lasts_s)
        struck = Struck(fault, time.monotonic())
        self.result.struck.append(struck)
        try:
            if not await strike(self._stack, fault):
                self.result.struck.remove(struck)  # what it was to hit was just being restarted
        except (Wronged, RuntimeError) as error:
            self.result.problems.append(str(error))

    async def _show_progress(self, start: float, duration_s: float, load: Load) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            report.say_progress(time.monotonic() - start, duration_s, load.tally, self.result.struck)


async def run(plan: Plan, make_faults: Callable[[ChaosStack], Sequence[Fault]], log: Path) -> Result:
    """Run a plan on a stack of its own and return what came of it; everything is printed.

    Args:
        plan: what to do.
        make_faults: returns the schedule, given the names of services and links.
        log: file for what the services write to stderr.
    """
    with _marked() as mark:
        stack = ChaosStack(plan.settings, log)
        async with stack:
            this = Run(plan, stack, mark)
            try:
                await this.go(make_faults(stack))
            except BaseException:
                _say_problems(plan, this.result)
                raise
        result = this.result
        result.problems += await asyncio.to_thread(find_remains, mark, stack.directory, timeout_s=_IDLE_TIMEOUT_S)
    result.problems += find_exceptions(log)
    if result.problems:
        _say_problems(plan, result)
    return result


@contextmanager
def _marked() -> Iterator[str]:
    """Give what is started inside a mark of its own, and the hook that collects garbage."""
    changed = {MARK: uuid.uuid4().hex, "PYTHONPATH": os.pathsep.join(filter(None, (_HOOKS, os.environ.get("PYTHONPATH"))))}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield changed[MARK]
    finally:
        for name, value in before.items():
            with suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _say_problems(plan: Plan, result: Result) -> None:
    report.say_schedule(result.struck)
    report.say_failures(result.tally.failures)
    report.say(f"\nFAILED with seed {plan.seed}:")
    for problem in result.problems:
        report.say(f"  - {problem}")
