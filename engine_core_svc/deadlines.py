"""Deadlines: a timer for each request that has one. Costs nothing for requests that have none."""

import asyncio
import time
from collections.abc import Callable


class Deadlines:
    """Timers on the running event loop.

    Args:
        expire: called with the request's key when its time is over.
    """

    def __init__(self, expire: Callable[[int], None]) -> None:
        self._expire = expire
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def watch(self, key: int, deadline_unix_s: float | None) -> None:
        """Start a request's timer; None: it has no deadline."""
        if deadline_unix_s is not None:
            delay = max(0.0, deadline_unix_s - time.time())
            self._timers[key] = asyncio.get_running_loop().call_later(delay, self._fire, key)

    def forget(self, key: int) -> None:
        """Stop a request's timer, if it has one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, key: int) -> None:
        del self._timers[key]
        self._expire(key)
