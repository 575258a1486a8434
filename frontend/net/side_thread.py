"""Side thread: runs long computations for one answer in a thread, so that the event loop serves other requests meanwhile.

A computing thread holds the interpreter lock for the switch interval, and the event loop has to wait for the lock after each of
its own waits: about thirty times in a short request. So the interval is short while the thread computes. With several threads
the event loop would wait for each of them, so there is only one. A long call into C holds the lock regardless of the interval:
callers divide such work into slices.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_SWITCH_INTERVAL_S = 0.0005
"""Maximum time that the event loop waits for the lock: a tenth of the interpreter's default."""

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="side")


async def in_side_thread(work: Callable[[], T]) -> T:
    """Run `work` in the side thread and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_thread, _run, work)


async def unless_short(work: Callable[[], T], *, is_short: bool) -> T:
    """Return the result of `work`, which runs in the side thread if it is long: it must read what no other task changes."""
    return work() if is_short else await in_side_thread(work)


def _run(work: Callable[[], T]) -> T:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, _SWITCH_INTERVAL_S))
    try:
        return work()
    finally:
        sys.setswitchinterval(interval_s)
