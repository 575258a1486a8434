"""SharedWork: runs a job once for all callers that need its result at the same time.

Used on one event loop. The job is cancelled when its last caller has left.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Job(Generic[T]):
    """A running job and the number of its callers."""

    task: asyncio.Task[T]
    num_callers: int = 0


class SharedWork(Generic[T]):
    """The running jobs by key."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job[T]] = {}

    async def run(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the job with this key, or raise its error; `start` makes the job if none runs."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(asyncio.get_running_loop().create_task(start()))
        job.num_callers += 1
        try:
            # A caller that leaves does not end the job of the others.
            return await asyncio.shield(job.task)
        finally:
            job.num_callers -= 1
            if not job.num_callers:
                job.task.cancel()
            if self._jobs.get(key) is job and (job.task.done() or not job.num_callers):
                del self._jobs[key]
