"""Orders: executes an operator's commands to an engine: pause, sleep, resume, and the hold of an update of the weights.

Called by the admin service, on the event loop. Decides whether the step loop may plan, and when the engine may sleep; Sleeper
puts it to sleep. Knows nothing of steps in flight.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tetrad.engine_core_svc.engine.sleep import Sleeper
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.worker.group import Pause
from tetrad.services.errors import AlreadyExists, InvalidRequest
from tetrad.services.log import get_logger

log = get_logger()


@dataclass(frozen=True, eq=False)
class _Hold:
    """One command that holds requests.

    Attributes:
        freezes: whether running requests are held, too; otherwise they may finish.
    """

    freezes: bool


class Orders:
    """The commands in force for one engine.

    Args:
        scheduler, sleeper: those of the engine.
        abort_all: ends every request.
        on_change: called when the commands in force have changed.

    Attributes:
        is_frozen: whether nothing is planned, not even for running requests.
    """

    def __init__(
        self, scheduler: Scheduler, sleeper: Sleeper, *, abort_all: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self.is_frozen = False
        self._pause: _Hold | None = None  # until a resume command
        self._rest: _Hold | None = None  # hold of a sleep command: until it has failed, or the engine is awake again
        self._update: _Hold | None = None  # until the weights are replaced
        self._scheduler, self._sleeper = scheduler, sleeper
        self._abort_all, self._on_change = abort_all, on_change

    @property
    def is_paused(self) -> bool:
        """Whether new requests are held; they are, too, while running requests may finish."""
        return self.is_frozen or not self._scheduler.admitting

    @property
    def may_rest(self) -> bool:
        """Whether the engine must sleep, or replace its weights, as soon as no plan is in flight."""
        must_rest = self._sleeper.is_ordered or self._update is not None
        return must_rest and (self.is_frozen or not self._scheduler.running)

    @property
    def kept_pause(self) -> Pause:
        """The pause that the next engine core restores. A sleep, and a pause before it, are not restored: it starts awake."""
        pause = None if self._sleeper.level else self._pause
        return Pause(pause is not None, finishes_running=pause is not None and not pause.freezes)

    def restore(self, pause: Pause) -> None:
        """Restore the pause of the engine core before this one."""
        if pause.is_paused:
            log.warning("engine.paused", why="an operator paused it before it was restarted")
            self.pause(finish_running=pause.finishes_running)

    def pause(self, *, abort: bool = False, finish_running: bool = False) -> None:
        """Stop planning: at once, or after running requests have finished; with `abort`, end all requests."""
        if abort:
            self._abort_all()
        self._pause = _Hold(freezes=not finish_running)
        if self._rest is not None:
            self._rest = self._pause
        self._apply()

    def resume(self) -> None:
        """Plan again. Raises AlreadyExists while the engine sleeps or a sleep command is in force."""
        if self._sleeper.level:
            raise AlreadyExists(f"The engine sleeps at level {self._sleeper.level}; wake it up instead.", reason="SLEEPING")
        self._pause = self._rest = None
        self._apply()

    async def sleep(self, level: int, *, abort: bool = False, finish_running: bool = False) -> None:
        """Pause, and above level 0 release the device's memory; unfinished requests are recomputed afterwards.

        Raises InvalidRequest for any other level, and the errors of Sleeper.order; a failed command holds no requests.
        """
        if not 0 <= level <= 3:
            raise InvalidRequest(f"level must be 0, 1, 2 or 3, got {level}.", field="level")
        if level == 0:
            self.pause(abort=abort, finish_running=finish_running)
            return
        order = self._sleeper.order(level)
        if abort:
            self._abort_all()
        rest = self._rest = _Hold(freezes=not finish_running)
        self._apply()
        # The callback runs also when the caller has disconnected.
        order.add_done_callback(lambda _: self._end_rest(rest, failed=order.exception() is not None))
        await asyncio.shield(order)

    async def wake_up(self, tags: Iterable[str]) -> None:
        """Undo `sleep`, for the parts that `tags` name or for all; see Sleeper.wake_up. Resume if all parts are awake."""
        await self._sleeper.wake_up(tags)
        if not self._sleeper.level:
            self.resume()

    def hold_for_update(self, *, abort: bool, finish_running: bool) -> None:
        """Hold requests until `end_update`; see `pause` for the arguments."""
        if abort:
            self._abort_all()
        self._update = _Hold(freezes=not finish_running)
        self._apply()

    def end_update(self) -> None:
        """Plan again, unless another command holds requests."""
        self._update = None
        self._apply()

    def _end_rest(self, rest: _Hold, *, failed: bool) -> None:
        # A later command may have replaced this one; it stays in force.
        if failed and self._rest is rest:
            self._rest = None
            self._apply()

    def _apply(self) -> None:
        """Apply the commands in force to the scheduler and the step loop: the latest one, and that of an update."""
        holds = [hold for hold in (self._rest or self._pause, self._update) if hold is not None]
        self._scheduler.admitting = not holds
        self.is_frozen = any(hold.freezes for hold in holds)
        self._on_change()
