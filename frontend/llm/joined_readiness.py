"""JoinedReadiness: whether a frontend can serve requests. It can if any of its models can.

A model whose services are lost does not take the frontend out of a load balancer: clients would lose the other models, too. The
frontend is not ready before its start has ended. Models may be added and removed while followers wait.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from tetrad.frontend.llm.readiness import Dependency, Readiness, Report, draining_error, starting_error


class JoinedReadiness:
    """The state of the services of all models."""

    def __init__(self) -> None:
        self._parts: dict[str, Readiness] = {}
        self._num_earlier_changes = 0
        self._started = self._draining = False
        self.leaving = asyncio.Event()
        """Set when the shutdown has begun or a successor serves, as Readiness.leaving."""

    @property
    def num_changes(self) -> int:
        """The number of changes since the start; it never decreases."""
        return self._num_earlier_changes + sum(part.num_changes for part in self._parts.values())

    def open(self, parts: Mapping[str, Readiness]) -> None:
        """Report these models from now on.

        Args:
            parts: the readiness of each model, by its name; at least one.
        """
        num_changes, before = self.num_changes, self._parts
        self._parts = dict(parts)
        self._num_earlier_changes += num_changes - self.num_changes
        # Followers still wait for changes of the previous parts.
        for part in {*before.values(), *self._parts.values()}:
            part.note_change()

    def check_started(self) -> None:
        """Raise Unavailable if the frontend has not begun to serve."""
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
        """Note that the shutdown has begun."""
        self._draining = True
        self.note_leaving()

    def report(self) -> Report:
        """Return the readiness of all models; with several models, the names of dependencies begin with the model's name."""
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
        """Return when `self.num_changes` exceeds `num_changes`."""
        while self.num_changes <= num_changes:
            waiting = [asyncio.create_task(part.wait_changed(part.num_changes)) for part in self._parts.values()]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def follow(self) -> AsyncIterator[Report]:
        """Yield the readiness of all models at once and after each possible change; never ends."""
        while True:
            num_changes = self.num_changes
            yield self.report()
            await self.wait_changed(num_changes)

    def _note_change(self) -> None:
        for part in self._parts.values():
            part.note_change()
