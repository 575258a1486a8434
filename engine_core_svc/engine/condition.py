"""Condition: whether the engine can make progress, and the reason if it cannot. Read by health, load and drain.

Set by the engine, on the event loop. Knows nothing of gRPC.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tetrad.services.log import get_logger

log = get_logger()


class Condition:
    """The condition of one engine, good at first.

    Args:
        on_change: called whenever the condition may have changed.

    Attributes:
        problem: the reason, as a sentence for operators; empty: the condition is good.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.problem = ""
        self._on_change = on_change
        self._changed = asyncio.Event()

    def set_problem(self, problem: str) -> None:
        """Record the reason why requests make no progress."""
        log.warning("engine.stuck", problem=problem)
        self.problem = problem
        self._tell()

    def set_good(self) -> None:
        """Record that requests make progress again."""
        if self.problem:
            log.info("engine.recovered", problem=self.problem)
        self.problem = ""
        self._tell()

    async def follow(self, publish: Callable[[bool], Awaitable[None]]) -> None:
        """Call `publish(is_good)` now and whenever the condition may have changed, until cancelled."""
        while True:
            await publish(not self.problem)
            await self._changed.wait()
            self._changed.clear()

    def _tell(self) -> None:
        self._changed.set()
        self._on_change()
