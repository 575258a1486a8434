"""Side thread: one thread for long computations on one answer, so that the event loop serves other requests meanwhile.

A computing thread gives the interpreter lock back after 5 ms (`sys.getswitchinterval`). Several threads would each take such a
turn, so there is one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="side")


async def in_side_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns in that thread."""
    return await asyncio.get_running_loop().run_in_executor(_thread, work)
