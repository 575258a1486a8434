"""Readiness: whether this frontend can serve requests now, and which of those it depends on are missing.

Read by /health, by the gRPC health of the public API, by metrics and by `tetrad status`. Names no addresses: anybody may ask.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from tetrad.frontend.routing.pool import EnginePool
from tetrad.frontend.tokenizer.replicas import TokenizerReplicas
from tetrad.services.channel import problem_of
from tetrad.services.errors import Unavailable

_NOBODY = "none is known"
_DRAINING = "This server is shutting down; try again."
_STARTING = "This server is starting; try again."


def draining_error() -> Unavailable:
    """Return what is told to requests that come, or still run, at the end."""
    return Unavailable(_DRAINING, reason="DRAINING", retry_after_s=1.0)


def starting_error() -> Unavailable:
    """Return what is told to requests that come before everything needed has answered once."""
    return Unavailable(_STARTING, reason="STARTING", retry_after_s=1.0)


@dataclass(frozen=True, slots=True)
class Dependency:
    """One service behind the frontend; `problem` is empty if it is well."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """How everything is at one moment; `problem` says in one sentence why requests cannot be served, empty if they can."""

    problem: str
    draining: bool
    dependencies: list[Dependency]

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return not self.problem

    def error(self) -> Unavailable:
        """Return what a request is told that cannot be served."""
        return Unavailable(self.problem, reason="DRAINING" if self.draining else None, retry_after_s=1.0)

    def check(self) -> None:
        """Return if requests can be served; raise `error` otherwise."""
        if not self.ready:
            raise self.error()


class Readiness:
    """The state of one frontend's dependencies. `note_change` is called by whoever changes it.

    Args:
        tokenizers: one is enough.
        engines: one that is well is enough.
    """

    def __init__(self, tokenizers: TokenizerReplicas, engines: EnginePool) -> None:
        self._tokenizers = tokenizers
        self._engines = engines
        self._changed = asyncio.Event()
        self.num_changes = 0
        self._draining = False
        self._started = False
        self.leaving = asyncio.Event()
        """Set when the end has begun or a successor is there: whoever follows this frontend should look for another one."""

    def note_change(self) -> None:
        """Tell those who follow that something may be different."""
        self.num_changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def note_started(self) -> None:
        """Note that everything needed has answered once, so that requests can be understood."""
        self._started = True
        self.note_change()

    def note_leaving(self) -> None:
        """Note that those who follow this frontend should look for another one."""
        self.leaving.set()
        self.note_change()

    def note_draining(self) -> None:
        """Note that the end has begun."""
        self._draining = True
        self.note_leaving()

    def report(self) -> Report:
        """Return how everything is."""
        tokenizers, engines = self._tokenizers.replicas, self._engines.engines
        tokenizer_problems = [_in_full(each.problem, each.channel) for each in tokenizers]
        engine_problems = [_in_full(each.problem, each.channel) for each in engines]
        problem = ""
        if self._draining:
            problem = _DRAINING
        elif all(tokenizer_problems):
            problem = f"No tokenizer is reachable ({_summary(tokenizer_problems or [_NOBODY])})."
        elif not any(each.connected for each in engines):
            problem = f"No engine core is reachable ({_summary(engine_problems or [_NOBODY])})."
        elif all(engine_problems):
            problem = f"No engine core makes progress ({_summary(engine_problems)})."
        elif not self._started:
            problem = _STARTING
        dependencies = [Dependency(f"tokenizer {place}", each) for place, each in enumerate(tokenizer_problems)]
        dependencies += [Dependency(f"engine core {place}", each) for place, each in enumerate(engine_problems)]
        return Report(problem, self._draining, dependencies)

    async def wait_changed(self, num_changes: int) -> None:
        """Return when there have been more changes than `num_changes`."""
        while self.num_changes <= num_changes:
            await self._changed.wait()

    async def follow(self) -> AsyncIterator[Report]:
        """Yield how everything is, now and whenever that may have changed; never ends."""
        while True:
            num_changes = self.num_changes
            yield self.report()
            await self.wait_changed(num_changes)


def _in_full(problem: str, channel: grpc.aio.Channel) -> str:
    """Return a problem with what is known of its cause."""
    cause = problem_of(channel) if problem else ""
    return f"{problem}: {cause}" if cause else problem


def _summary(problems: list[str]) -> str:
    return "; ".join(dict.fromkeys(problems))
