"""IdleTimer: calls back after a time without activity. It uses one timer for any number of notes; a note is one assignment.

The timer fires a few times per interval and counts firings without activity, so a process that is stopped and continued does
not count as idle (running_time.py).
"""

import asyncio
from collections.abc import Callable

_NUM_SLICES = 4


class IdleTimer:
    """Runs from its construction until `stop`, on the running event loop.

    Args:
        interval_s: seconds without a note until the call; after a note, up to a quarter more may pass.
        on_idle: called after each interval without a note; may stop the timer.
    """

    __slots__ = ("_handle", "_loop", "_num_left", "_on_idle", "_slice_s", "_stopped")

    def __init__(self, interval_s: float, on_idle: Callable[[], None]) -> None:
        self._slice_s = interval_s / _NUM_SLICES
        self._on_idle = on_idle
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._num_left = _NUM_SLICES
        self._handle = self._loop.call_later(self._slice_s, self._look)

    def note(self) -> None:
        """Note activity."""
        self._num_left = _NUM_SLICES + 1  # one more, since the present slice has begun already

    def stop(self) -> None:
        """Stop the timer: it never calls back again."""
        self._stopped = True
        self._handle.cancel()
        self._on_idle = _do_nothing  # breaks the reference cycle with its owner, which holds this timer

    def _look(self) -> None:
        self._num_left -= 1
        if not self._num_left:
            self._num_left = _NUM_SLICES
            self._on_idle()
        if not self._stopped:
            self._handle = self._loop.call_later(self._slice_s, self._look)


def _do_nothing() -> None:
    pass
