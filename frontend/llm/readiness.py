"""Readiness: whether requests for one model can be served now, and which of its services are missing.

/health, the gRPC health service of the public API, metrics and `tetrad status` read it. It contains no addresses, since any
caller may read it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tetrad.frontend.engine.link import EngineLink
from tetrad.frontend.routing.pool import EnginePool
from tetrad.frontend.tokenizer.link import TokenizerLink
from tetrad.frontend.tokenizer.replicas import TokenizerReplicas
from tetrad.services.errors import Unavailable

_NOBODY = "none is known"
_DRAINING = "This server is shutting down; try again."
_STARTING = "This server is starting; try again."


def draining_error() -> Unavailable:
    """Return the error of requests that arrive or are still running while the server shuts down."""
    return Unavailable(_DRAINING, reason="DRAINING", retry_after_s=1.0)


def starting_error() -> Unavailable:
    """Return the error of requests that arrive before all services have answered once."""
    return Unavailable(_STARTING, reason="STARTING", retry_after_s=1.0)


def unloaded_error(name: str) -> Unavailable:
    """Return the error of requests that are still running when the drain time of an unloaded model is over."""
    return Unavailable(f"The model `{name}` has been unloaded.", reason="UNLOADED")


@dataclass(frozen=True, slots=True)
class Dependency:
    """A service that the frontend needs; `problem` is empty if the service works."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of all services at one moment.

    Attributes:
        problem: why requests cannot be served; empty if they can.
        draining: whether the shutdown has begun.
        dependencies: the state of each service.
        started: whether the frontend has begun to serve: all required services have answered once.
    """

    problem: str
    draining: bool
    dependencies: list[Dependency]
    started: bool

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return not self.problem

    def error(self) -> Unavailable:
        """Return the error of a request that cannot be served."""
        return Unavailable(self.problem, reason="DRAINING" if self.draining else None, retry_after_s=1.0)

    def check(self) -> None:
        """Raise `error()` if requests cannot be served."""
        if not self.ready:
            raise self.error()


class Readiness:
    """The state of the services of one model. Code that changes the state of a service calls `note_change`.

    Args:
        tokenizers: the tokenizers; one reachable tokenizer is enough.
        engines: the engine cores; one that makes progress is enough.
    """

    def __init__(self, tokenizers: TokenizerReplicas, engines: EnginePool) -> None:
        self._tokenizers = tokenizers
        self._engines = engines
        self._changed = asyncio.Event()
        self.num_changes = 0
        self._draining = False
        self._started = False
        self.leaving = asyncio.Event()
        """Set when the shutdown has begun or a successor serves: clients should choose another frontend."""

    def note_change(self) -> None:
        """Notify followers of a possible change."""
        self.num_changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def note_started(self) -> None:
        """Note that all required services have answered once, so that requests can be processed."""
        self._started = True
        self.note_change()

    def note_leaving(self) -> None:
        """Note that clients should choose another frontend."""
        self.leaving.set()
        self.note_change()

    def note_draining(self) -> None:
        """Note that the shutdown has begun."""
        self._draining = True
        self.note_leaving()

    def report(self) -> Report:
        """Return the readiness of the model and its services."""
        tokenizers, engines = self._tokenizers.replicas, self._engines.engines
        tokenizer_problems = [_in_full(each.problem, each.link) for each in tokenizers]
        engine_problems = [_in_full(each.problem, each.link) for each in engines]
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
        return Report(problem, self._draining, dependencies, self._started)

    async def wait_changed(self, num_changes: int) -> None:
        """Return when `self.num_changes` exceeds `num_changes`."""
        while self.num_changes <= num_changes:
            await self._changed.wait()

    async def follow(self) -> AsyncIterator[Report]:
        """Yield the readiness at once and after each possible change; never ends."""
        while True:
            num_changes = self.num_changes
            yield self.report()
            await self.wait_changed(num_changes)


def _in_full(problem: str, link: EngineLink | TokenizerLink) -> str:
    """Return a problem with its cause, if the link knows the cause."""
    cause = link.problem if problem else ""
    return f"{problem}: {cause}" if cause else problem


def _summary(problems: list[str]) -> str:
    return "; ".join(dict.fromkeys(problems))
