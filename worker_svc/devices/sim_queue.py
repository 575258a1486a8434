"""Simulated queue: computes when a device that runs one step after another begins and ends each step, exact to about 20 us.

As on an accelerator, a step begins when the step before it ends, even if the earlier result has not been read yet. The compute
thread adds steps, and the waiting thread waits for their ends. Each end is an absolute time, so a late wake-up does not delay
the following steps.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tetrad.worker_svc.core.result import ModelRunnerOutput

_PR_SET_TIMERSLACK = 29
_LEAST_SLACK_NS = 1
_thread = threading.local()


def precise_sleep(seconds: float) -> None:
    """Sleep without the 50 us by which Linux delays timers to save power; a delay of 20 us remains."""
    if not getattr(_thread, "is_precise", False):
        _thread.is_precise = True
        prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only Linux has this function
        if prctl is not None:
            prctl(_PR_SET_TIMERSLACK, _LEAST_SLACK_NS, 0, 0, 0)
    time.sleep(seconds)


class SimQueue:
    """The queue of one device.

    Args:
        sleep: waits for the given number of seconds.
        clock: returns the time in seconds.
    """

    def __init__(self, sleep: Callable[[float], None] = precise_sleep, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sleep, self._clock = sleep, clock
        self._free_at = 0.0

    def add(self, result: ModelRunnerOutput, seconds: float, ready_at: float) -> "SimStep":
        """Queue a step that takes `seconds` and begins at `ready_at` or later."""
        self._free_at = max(self._free_at, ready_at) + seconds
        return SimStep(replace(result, compute_seconds=seconds), self._free_at, self)

    def wait_until(self, end: float) -> None:
        """Wait until the clock reaches `end`."""
        if (remaining := end - self._clock()) > 0:
            self._sleep(remaining)


class SimStep:
    """A step on the simulated device; see PendingStep."""

    def __init__(self, result: ModelRunnerOutput, end: float, queue: SimQueue) -> None:
        self._result, self._end, self._queue = result, end, queue

    def wait(self) -> ModelRunnerOutput:
        """Wait until the step's simulated end, and return its output."""
        self._queue.wait_until(self._end)
        return self._result
