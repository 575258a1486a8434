"""Loop watchdog: ends a process whose event loop stands still.

Such a process looks alive, as gRPC answers pings on threads of its own, but does nothing any more: dead it would be replaced,
and its requests would go on. Kept by process.py, for every service. Python's faulthandler does the waiting, on a thread that
needs no interpreter lock, and writes where every thread stands before it ends the process with code 1.
"""

import asyncio
import faulthandler

_STDERR = 2
_LOOKS_PER_TIMEOUT = 3


class LoopWatchdog:
    """Started and stopped on the loop that it watches.

    Args:
        timeout_s: longest time that the loop may not come round; 0: it is not watched.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Expect the loop to come round from now on."""
        if self._timeout_s:
            self._look()

    def stop(self) -> None:
        """Expect nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=_STDERR)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s / _LOOKS_PER_TIMEOUT, self._look)
