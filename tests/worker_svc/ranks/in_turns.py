"""Steps in turns: drivers of one pipeline, whose steps are in the stages at the same time."""

from collections import deque

from tests.worker_svc.conftest import Driver
from tests.worker_svc.ranks.groups import Group
from tetrad.worker_svc.core.result import ModelRunnerOutput, finished


class InTurns:
    """Two drivers whose steps pass through the stages of one group at the same time."""

    def __init__(self, group: Group, drivers: list[Driver]) -> None:
        self._group, self._drivers = group, drivers
        self._under_way: deque[tuple[Driver, object]] = deque()

    def begin(self, driver: Driver, scheduled: dict[int, int], **extra: object) -> None:
        plan = driver.plan(scheduled, **extra)
        step = self._group.ranks[0].compute.run(self._group.begin, plan)
        self._under_way.append((driver, step))

    def end_one(self) -> ModelRunnerOutput:
        driver, step = self._under_way.popleft()
        return driver.take(self._group.ranks[0].compute.run(finished, step))

    def run(self, num_tokens: int, **extra: object) -> list[ModelRunnerOutput]:
        """Run both, each step planned before the result of the one before the last, as an engine core does; return results."""
        results = []
        for _ in range(num_tokens):
            for driver in self._drivers:
                self.begin(driver, {handle: driver.remaining(handle) for handle in driver.requests}, **extra)
                if len(self._under_way) > 2:
                    results.append(self.end_one())
        while self._under_way:
            results.append(self.end_one())
        return results
