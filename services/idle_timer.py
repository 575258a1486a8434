"""IdleTimer: calls back when nothing was noted for a while. One timer, however often that is: notes cost nothing."""

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Runs from its making until `stop`. Used on the running event loop.

    Args:
        interval_s: how long is a while.
        on_idle: called after each such while without a note; may stop the timer.
    """

    __slots__ = ("_handle", "_interval_s", "_loop", "_noted_at", "_on_idle", "_stopped")

    def __init__(self, interval_s: float, on_idle: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._on_idle = on_idle
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._noted_at = self._loop.time()
        self._handle = self._loop.call_later(interval_s, self._look)

    def note(self) -> None:
        """Say that something happened."""
        self._noted_at = self._loop.time()

    def stop(self) -> None:
        """Never call back again."""
        self._stopped = True
        self._handle.cancel()

    def _look(self) -> None:
        left_s = self._noted_at + self._interval_s - self._loop.time()
        if left_s <= 0:
            left_s = self._interval_s
            self.note()
            self._on_idle()
        if not self._stopped:
            self._handle = self._loop.call_later(left_s, self._look)
