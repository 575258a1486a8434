"""Compute thread: the one thread that owns the device. The event loop hands it calls and awaits them; they run in order."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ComputeThread:
    """A queue of calls and the thread that works it off; asleep when it is empty."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self.is_closed = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a call and return its future; cancelling one that has not begun drops the call."""
        return asyncio.wrap_future(self._executor.submit(call, *args, **kwargs))

    def close(self) -> None:
        """Drop what is queued; the call that runs is left to end by itself."""
        self.is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
