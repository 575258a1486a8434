"""Time slice: lets a task with many small computations yield to the event loop every few milliseconds."""

import asyncio
import time
from collections.abc import Callable

_SLICE_S = 0.0005


class TimeSlice:
    """Limits the time for which one task occupies the event loop; `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._end = now() + _SLICE_S

    async def check(self) -> None:
        """Let other tasks run if the slice is over."""
        if self._now() >= self._end:
            await asyncio.sleep(0)
            self._end = self._now() + _SLICE_S
