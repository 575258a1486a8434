"""Orders: what operators tell an engine to do: to pause, to sleep, and to go on.

Given by the admin service, on the event loop. Says whether the step loop may plan, and when it may come to rest; how the engine
sleeps is the sleeper's business. Knows nothing of steps in flight.
"""

import asyncio
from collections.abc import Callable, Iterable

from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sleep import Sleeper
from tetrad.services.errors import AlreadyExists, InvalidRequest, TetradError


class Orders:
    """What an engine was told last.

    Args:
        scheduler, sleeper: the engine's.
        abort_all: ends every request.
        on_change: called when what is ordered has changed.

    Attributes:
        is_frozen: nothing is planned, not even for what runs.
    """

    def __init__(
        self, scheduler: Scheduler, sleeper: Sleeper, *, abort_all: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self.is_frozen = False
        self._scheduler, self._sleeper = scheduler, sleeper
        self._abort_all, self._on_change = abort_all, on_change

    @property
    def is_paused(self) -> bool:
        """Whether new requests wait: they do, too, where those that run may finish."""
        return self.is_frozen or not self._scheduler.admitting

    @property
    def may_rest(self) -> bool:
        """Whether the engine is to sleep as soon as nothing is in flight."""
        return self._sleeper.is_ordered and (self.is_frozen or not self._scheduler.running)

    def pause(self, *, abort: bool = False, finish_running: bool = False) -> None:
        """Stop planning: at once, or after what runs has finished; with `abort`, end everything."""
        if abort:
            self._abort_all()
        self._scheduler.admitting = False
        self.is_frozen = not finish_running
        self._on_change()

    def resume(self) -> None:
        """Plan again; AlreadyExists while the engine sleeps or is about to."""
        if self._sleeper.level:
            raise AlreadyExists(f"The engine sleeps at level {self._sleeper.level}; wake it up instead.", reason="SLEEPING")
        self.is_frozen, self._scheduler.admitting = False, True
        self._on_change()

    async def sleep(self, level: int, *, abort: bool = False, finish_running: bool = False) -> None:
        """Pause, and at levels 1 and 2 give the device's memory up; requests that neither end nor finish are recomputed.

        Raises InvalidRequest for another level, else what Sleeper.order does; nothing is paused then.
        """
        if not 0 <= level <= 2:
            raise InvalidRequest(f"level must be 0, 1 or 2, got {level}.", field="level")
        order = self._sleeper.order(level) if level else None
        before = self.is_frozen, self._scheduler.admitting
        self.pause(abort=abort, finish_running=finish_running)
        if order is None:
            return
        try:
            await asyncio.shield(order)
        except TetradError:
            self.is_frozen, self._scheduler.admitting = before
            self._on_change()
            raise

    async def wake_up(self, tags: Iterable[str]) -> None:
        """Undo `sleep`, for the parts that tags name or for all; see Sleeper.wake_up. What is awake in all parts is resumed."""
        await self._sleeper.wake_up(tags)
        if not self._sleeper.level:
            self.resume()
