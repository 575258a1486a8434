"""IdleTimer: calls back after a time without activity. One timer for any number of notes, each of which is one assignment.

It fires a few times per interval and counts intervals without activity, so a process that is stopped and continued is not
taken for an idle one (running_time.py).
"""

import asyncio
from collections.abc import Callable

_NUM_SLICES = 4


class IdleTimer:
    """Runs from its making until `stop`. Used on the running event loop.

    Args:
        interval_s: how long is a while; behind a note, up to a quarter more may pass.
        on_idle: called after each such while without a note; may stop the timer.
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
        """Say that something happened."""
        self._num_left = _NUM_SLICES + 1  # the present slice has begun

    def stop(self) -> None:
        """Never call back again."""
        self._stopped = True
        self._handle.cancel()
        self._on_idle = _do_nothing  # its owner holds this timer: without this, both wait for the garbage collector

    def _look(self) -> None:
        self._num_left -= 1
        if not self._num_left:
            self._num_left = _NUM_SLICES
            self._on_idle()
        if not self._stopped:
            self._handle = self._loop.call_later(self._slice_s, self._look)


def _do_nothing() -> None:
    pass
