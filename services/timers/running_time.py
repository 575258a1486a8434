"""Running time: timers that count only the time in which the event loop of this process could run.

When a process is stopped and continued (SIGSTOP, `docker pause`), all of its ordinary timers are overdue, although it could
read no answer meanwhile. These timers wait in slices and count each slice once, whatever its duration: a stop costs one slice.
Used for timeouts of peers and children; a client's deadline counts ordinary time. Used on one event loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

NUM_SLICES = 10


class RunningTimer:
    """Calls back once, after `delay_s` seconds of running time. It starts when it is made.

    Args:
        delay_s: seconds to wait.
        callback: called on the running event loop.
    """

    __slots__ = ("_callback", "_handle", "_loop", "_num_left", "_slice_s")

    def __init__(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._slice_s = max(delay_s, 0.0) / NUM_SLICES
        self._num_left = NUM_SLICES
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(self._slice_s, self._end_slice)

    def cancel(self) -> None:
        """Cancel the timer: it never calls back."""
        self._handle.cancel()

    def _end_slice(self) -> None:
        self._num_left -= 1
        if self._num_left > 0:
            self._handle = self._loop.call_later(self._slice_s, self._end_slice)
        else:
            self._callback()


class RunningLimit:
    """The limit of the time of some work; see `running_timeout`.

    Args:
        delay_s: the limit, in seconds.
        limit: ends the work.
    """

    __slots__ = ("_delay_s", "_expire", "_timer")

    def __init__(self, delay_s: float, limit: asyncio.Timeout) -> None:
        self._delay_s = delay_s
        self._expire = partial(_expire, limit)  # no method: the object and its timer would be a cycle
        self._timer = RunningTimer(delay_s, self._expire)

    def restart(self) -> None:
        """Let the time begin now."""
        self._timer.cancel()
        self._timer = RunningTimer(self._delay_s, self._expire)

    def cancel(self) -> None:
        """End the limit: it does not end the work any more."""
        self._timer.cancel()


def _expire(limit: asyncio.Timeout) -> None:
    limit.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def running_timeout(delay_s: float) -> AsyncIterator[RunningLimit]:
    """Limit the time of the work inside, as `asyncio.timeout(delay_s)` does, in running time.

    Raises:
        TimeoutError: the work inside took longer, and was cancelled.
    """
    async with asyncio.timeout(None) as limit:
        running = RunningLimit(delay_s, limit)
        try:
            yield running
        finally:
            running.cancel()


class Watchdog:
    """A timer that fires when there was no progress for too long; made on the event loop that runs it.

    Progress costs one assignment, and an idle process is woken at most once: one timer fires ten times per timeout, regardless
    of how often progress is made.

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
