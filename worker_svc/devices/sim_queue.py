"""Simulated queue: when a device that works off one step behind the other begins and ends each of them, to some 20 us.

As on an accelerator, the step behind another one begins when that one ends, whether or not its result has been read by then.
The compute thread adds steps, the waiting thread waits for their ends. Each end is a point in time, so that a late wake-up is
not added to the steps behind it.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tetrad.worker_svc.core.plan import ModelRunnerOutput

_PR_SET_TIMERSLACK = 29
_LEAST_SLACK_NS = 1
_thread = threading.local()


def precise_sleep(seconds: float) -> None:
    """Sleep without the 50 us by which Linux delays timers to wake a processor less often; 20 us remain."""
    if not getattr(_thread, "is_precise", False):
        _thread.is_precise = True
        prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
        if prctl is not None:
            prctl(_PR_SET_TIMERSLACK, _LEAST_SLACK_NS, 0, 0, 0)
    time.sleep(seconds)


class SimQueue:
    """The queue of one device.

    Args:
        sleep: waits for so many seconds.
        clock: seconds.
    """

    def __init__(self, sleep: Callable[[float], None] = precise_sleep, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sleep, self._clock = sleep, clock
        self._free_at = 0.0

    def add(self, result: ModelRunnerOutput, seconds: float, ready_at: float) -> "SimStep":
        """Queue a step that takes so many seconds and cannot begin before `ready_at`."""
        self._free_at = max(self._free_at, ready_at) + seconds
        return SimStep(replace(result, compute_seconds=seconds), self._free_at, self)

    def wait_until(self, end: float) -> None:
        """Return when this time has come."""
        if (remaining := end - self._clock()) > 0:
            self._sleep(remaining)


class SimStep:
    """A step on the simulated device; see PendingStep."""

    def __init__(self, result: ModelRunnerOutput, end: float, queue: SimQueue) -> None:
        self._result, self._end, self._queue = result, end, queue

    def wait(self) -> ModelRunnerOutput:
        """Return the step's output when its simulated time is over."""
        self._queue.wait_until(self._end)
        return self._result
