"""JoinedReadiness: whether a frontend can serve requests: if any of its models can.

A model whose services are lost does not take the frontend out of a load balancer: the others would be lost with it. Until the
frontend has begun to serve, it waits for all of them. Models come and go while followers wait.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from tetrad.frontend.llm.readiness import Dependency, Readiness, Report, draining_error, starting_error


class JoinedReadiness:
    """The state of all models' dependencies."""

    def __init__(self) -> None:
        self._parts: dict[str, Readiness] = {}
        self._num_earlier_changes = 0
        self._started = self._draining = False
        self.leaving = asyncio.Event()
        """As Readiness.leaving."""

    @property
    def num_changes(self) -> int:
        """Changes since start; never falls."""
        return self._num_earlier_changes + sum(part.num_changes for part in self._parts.values())

    def open(self, parts: Mapping[str, Readiness]) -> None:
        """Follow these models from now on.

        Args:
            parts: the readiness of each model, by its name; at least one.
        """
        num_changes, before = self.num_changes, self._parts
        self._parts = dict(parts)
        self._num_earlier_changes += num_changes - self.num_changes
        # Followers wait at the parts that there were.
        for part in {*before.values(), *self._parts.values()}:
            part.note_change()

    def check_started(self) -> None:
        """Raise Unavailable before the frontend has begun to serve."""
        if not self._started:
            raise starting_error()

    def note_started(self) -> None:
        """Note that the frontend begins to serve."""
        self._started = True
        self._note_change()

    def note_leaving(self) -> None:
        """Note that clients should choose another frontend."""
        self.leaving.set()
        self._note_change()

    def note_draining(self) -> None:
        """Note that the end has begun."""
        self._draining = True
        self.note_leaving()

    def report(self) -> Report:
        """Return the readiness of all models; of several, dependencies have the name of their model."""
        if len(self._parts) == 1:
            return next(iter(self._parts.values())).report()
        reports = {name: part.report() for name, part in self._parts.items()}
        problem = ""
        if self._draining:
            problem = draining_error().message
        elif not any(report.ready for report in reports.values()):
            problem = " ".join(f"{name}: {report.problem}" for name, report in reports.items())
        elif not self._started:
            problem = starting_error().message
        dependencies = [
            Dependency(f"{name}: {each.name}", each.problem) for name, report in reports.items() for each in report.dependencies
        ]
        return Report(problem, self._draining, dependencies, self._started)

    async def wait_changed(self, num_changes: int) -> None:
        """Return when there have been more changes than `num_changes`."""
        while self.num_changes <= num_changes:
            waiting = [asyncio.create_task(part.wait_changed(part.num_changes)) for part in self._parts.values()]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def follow(self) -> AsyncIterator[Report]:
        """Yield the readiness of all models, now and whenever it may have changed; never ends."""
        while True:
            num_changes = self.num_changes
            yield self.report()
            await self.wait_changed(num_changes)

    def _note_change(self) -> None:
        for part in self._parts.values():
            part.note_change()
