"""Outage: the times at which a part of the chaos stack was down, which excuse requests that failed then."""

import asyncio
import time


class Outage:
    """Times at which one thing was down, the frontend or its disk.

    A request was hit by it if the request was under way at any moment of such a time.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._last_ended_at = float("-inf")
        self._news = asyncio.Event()

    def begin(self) -> None:
        """It is down, or about to be."""
        if self._began_at is None:
            self._began_at = time.monotonic()
        self._news.set()

    def end(self) -> None:
        """It works again."""
        if self._began_at is not None:
            self._began_at, self._last_ended_at = None, time.monotonic()

    async def was_since(self, started_at: float, *, timeout_s: float) -> bool:
        """Return whether it was down at any time since then; waits so long for the news."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._down_since(started_at):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _down_since(self, started_at: float) -> bool:
        return self._began_at is not None or self._last_ended_at >= started_at
