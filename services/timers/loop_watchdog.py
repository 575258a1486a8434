"""Loop watchdog: ends a process whose event loop is blocked.

Such a process seems alive, since gRPC answers pings on its own threads; once it has ended it is replaced, and its requests
resume. Started by process.py, for every service. A thread counts its own ticks since the last turn of the loop, not the time,
so a process that is stopped and continued misses no tick. While native code holds the interpreter lock no thread can count;
then a limit on the CPU time ends the process.
"""

import asyncio
import faulthandler
import os
import signal
import threading

_STDERR = 2
_TICKS_PER_TIMEOUT = 10
# Seconds after which the process ends without its traces, if stderr is not read.
_DUMP_TIMEOUT_S = 5


class LoopWatchdog:
    """Watches the event loop on which it is started. Its thread increases and reads `_num_missed`, which the loop sets to 0.

    Args:
        timeout_s: maximum seconds between two turns of the loop; 0: the loop is not watched.
    """

    def __init__(self, timeout_s: float) -> None:
        self._tick_s = timeout_s / _TICKS_PER_TIMEOUT
        # All processors may compute during the longest allowed time between two turns of the loop.
        self._cpu_s = timeout_s * (os.cpu_count() or 1)
        self._num_missed = 0
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start watching the loop."""
        if self._tick_s:
            faulthandler.register(signal.SIGPROF, file=_STDERR, chain=True)
            self._come_round()
            threading.Thread(target=self._count, daemon=True, name="loop watchdog").start()

    def stop(self) -> None:
        """Stop watching the loop."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _come_round(self) -> None:
        self._num_missed = 0
        signal.setitimer(signal.ITIMER_PROF, self._cpu_s)
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._come_round)

    def _count(self) -> None:
        while not self._stopped.wait(self._tick_s):
            self._num_missed += 1
            if self._num_missed > _TICKS_PER_TIMEOUT:
                signal.alarm(_DUMP_TIMEOUT_S)
                faulthandler.dump_traceback(_STDERR)
                os._exit(1)
