"""Side thread: one thread for long computations on one answer, so that the event loop serves other requests meanwhile.

A computing thread keeps the interpreter lock for the switch interval, and the event loop waits for it after each of its own
waits: some thirty times in a short request. So the interval is short while the thread computes. Several threads would each
take such a turn, so there is one. A call into C that takes long keeps the lock all the same: callers cut such work into slices.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_SWITCH_INTERVAL_S = 0.0005
"""A tenth of the interpreter's own: what the event loop waits at most for the lock."""

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="side")


async def in_side_thread(work: Callable[[], T]) -> T:
    """Run `work` in the side thread and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _run, work)


def _run(work: Callable[[], T]) -> T:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, _SWITCH_INTERVAL_S))
    try:
        return work()
    finally:
        sys.setswitchinterval(interval_s)
