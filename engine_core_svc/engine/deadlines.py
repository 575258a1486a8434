"""Deadlines: one timer for each request with a deadline, and none for the others."""

import asyncio
from collections.abc import Callable


class Deadlines:
    """The timers of requests, on the running event loop.

    Args:
        expire: called with the request's key when its deadline has passed.
    """

    def __init__(self, expire: Callable[[int], None]) -> None:
        self._expire = expire
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def watch(self, key: int, timeout_s: float | None) -> None:
        """Start a request's timer; None: it has no deadline."""
        if timeout_s is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(timeout_s, self._fire, key)

    def forget(self, key: int) -> None:
        """Stop a request's timer, if it has one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, key: int) -> None:
        del self._timers[key]
        self._expire(key)
