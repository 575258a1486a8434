"""Watchdog: a timer that fires when there was no progress for too long.

Runs on the event loop. Progress costs one assignment, and an idle process is woken at most once: one timer fires ten times per
timeout, regardless of how often progress is made. It counts its firings without progress instead of the time, so a process that
is stopped and continued does not report its peer (services/timers/running_time.py).
"""

import asyncio
from collections.abc import Callable

from tetrad.services.timers.running_time import NUM_SLICES


class Watchdog:
    """A watch on progress; made on the event loop that runs it.

    Args:
        timeout_s: maximum seconds without progress; it may fire up to a tenth later.
        bark: called once when the timeout has passed; the watch has ended then.
    """

    def __init__(self, timeout_s: float, bark: Callable[[], None]) -> None:
        self._slice_s = timeout_s / NUM_SLICES
        self._bark = bark
        self._loop = asyncio.get_running_loop()
        self._num_left = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Expect progress within the timeout from now on; call it again at each progress."""
        self._num_left = NUM_SLICES + 1  # one more, since the present slice has begun already
        if self._timer is None:
            self._num_left = NUM_SLICES
            self._timer = self._loop.call_later(self._slice_s, self._look)

    def rest(self) -> None:
        """Stop expecting progress, until the next call of `watch`."""
        self._num_left = 0

    def close(self) -> None:
        """End the watch."""
        self._num_left = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._num_left:
            return
        self._num_left -= 1
        if self._num_left:
            self._timer = self._loop.call_later(self._slice_s, self._look)
        else:
            self._bark()
