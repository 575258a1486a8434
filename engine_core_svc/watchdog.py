"""Watchdog: a timer that barks when something awaited has not come for too long.

On the event loop. One timer however often progress is made: it looks at the time when it fires and goes on for the rest, so a
step costs nothing but a clock reading, and an idle process at most one wake-up.
"""

import asyncio
from collections.abc import Callable


class Watchdog:
    """Made on the loop it runs on.

    Args:
        timeout_s: longest time without progress.
        bark: called once when that is over; the watch has ended then.
    """

    def __init__(self, timeout_s: float, bark: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._bark = bark
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Expect progress within the timeout from now on; progress is another call of this."""
        self._deadline = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look)

    def rest(self) -> None:
        """Expect nothing."""
        self._deadline = None

    def close(self) -> None:
        """End the watch for good."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self._deadline = None
            self._bark()
