"""ServeSignals: the signal handlers of `tetrad serve`.

SIGINT and SIGTERM: stop in order; a second one: end at once. SIGHUP: restart every service, one after the other; but a SIGHUP
because the command's terminal was closed stops the command.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_EXIT_KILLED = 1


class ServeSignals:
    """Handles the signals of this process from the construction on. Belongs to the running event loop.

    Args:
        on_second: called at the second signal to stop; the process exits after it.
    """

    def __init__(self, *, on_second: Callable[[], None]) -> None:
        self._on_second = on_second
        self._stopping = asyncio.Event()
        self._restart = asyncio.Event()
        self._is_immune = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        self._had_terminal = _has_terminal()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for `work` and return True; if a signal to stop arrives first, cancel it and return False."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return not self._stopping.is_set()
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def wait_restart(self) -> None:
        """Wait for the next SIGHUP since the last call."""
        await self._restart.wait()
        self._restart.clear()

    def _on_stop(self) -> None:
        if self._stopping.is_set():
            self._on_second()
            os._exit(_EXIT_KILLED)
        self._stopping.set()

    def _on_hangup(self) -> None:
        if not self._had_terminal or _has_terminal():
            self._restart.set()
        elif not self._is_immune:
            self._stopping.set()


def _has_terminal() -> bool:
    """Return whether the process has an open controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
