"""Sleep: the state of an engine that releases its device's memory between two commands of an operator.

Commands come from the admin service; the engine's run loop calls `rest` when no plan is in flight and its stream to the worker
is closed; all on the event loop. Waking up connects the worker as after a loss. Sessions and health are notified. Knows the
worker's lifecycle; knows no requests.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum

from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.engine_core_svc.worker.group import WorkerGroup
from tetrad.services.errors import AlreadyExists, TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()


class _State(Enum):
    AWAKE = 0
    ORDERED = 1  # results of plans in flight still arrive
    FALLING = 2  # the worker executes the command
    ASLEEP = 3


class Sleeper:
    """The sleep state of an engine, and the callers that wait for a change of it.

    Args:
        workers: the workers that sleep with the engine.
        sessions, condition: those of the engine.

    Attributes:
        level: level at which the engine sleeps, or was ordered to sleep; 0: awake.
    """

    def __init__(self, workers: WorkerGroup, sessions: Sessions, condition: Condition) -> None:
        self._workers, self._sessions, self._condition = workers, sessions, condition
        self.level = 0
        self._state = _State.AWAKE
        self._fallen: asyncio.Future[None] | None = None  # the answer to the sleep command
        self._roused, self._awake = asyncio.Event(), asyncio.Event()

    @property
    def is_ordered(self) -> bool:
        """Whether the engine was ordered to sleep and must become idle."""
        return self._state is _State.ORDERED

    @property
    def is_asleep(self) -> bool:
        """Whether device memory is released, wholly or in part."""
        return self._state is _State.ASLEEP

    def check_awake(self) -> None:
        """Raise Unavailable while the engine sleeps: a new request would wait for an unknown time."""
        if self.is_asleep:
            raise Unavailable(f"The engine sleeps at level {self.level}; wake it up first.", reason="SLEEPING")

    def notify(self, session: Session) -> None:
        """Send the notice of sleep to a session that opens during it."""
        if self.is_asleep:
            session.outbox.put(self._notice())

    # --- orders -----------------------------------------------------------------------------------------------------

    def order(self, level: int) -> "asyncio.Future[None]":
        """Order a sleep; return a future that ends when the engine sleeps at this level, or fails if it cannot.

        Raises AlreadyExists if it sleeps at another level.
        """
        if self.level not in (0, level):
            raise AlreadyExists(f"The engine sleeps at level {self.level}; wake it up first.", reason="SLEEPING")
        if self._state is _State.AWAKE:
            self.level, self._state = level, _State.ORDERED
            self._fallen = asyncio.get_running_loop().create_future()
        assert self._fallen is not None
        return self._fallen

    async def wake_up(self, tags: Iterable[str]) -> None:
        """Wake the engine up; return when it is awake, or when the parts that `tags` name are and others still sleep.

        Raises the worker's error; the engine then stays asleep.
        """
        if self._state is _State.ORDERED:
            self._end_order(Unavailable("The engine was woken up before it slept."))
        if self._state is _State.FALLING and self._fallen is not None:
            await asyncio.wait([self._fallen])
        if self._state is _State.ASLEEP and not await self._workers.wake_up(list(tags)):
            self._roused.set()
            await self._awake.wait()

    # --- calls of the run loop ------------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Put the worker to sleep and wait until it is woken up; return at once if the command was withdrawn or failed."""
        if self._state is not _State.ORDERED:
            return
        self._state = _State.FALLING
        try:
            await self._workers.sleep(self.level)
        except TetradError as error:
            self._end_order(error)
            return
        self._state = _State.ASLEEP
        self._roused.clear()
        self._awake.clear()
        log.info("engine.asleep", level=self.level)
        self._condition.set_problem(f"The engine sleeps at level {self.level}")
        self._sessions.broadcast(self._notice())
        assert self._fallen is not None
        self._fallen.set_result(None)
        await self._roused.wait()

    def note_worker(self) -> bool:
        """Note that a worker is connected; return whether the engine slept until now."""
        if not self.is_asleep:
            return False
        self.level, self._state = 0, _State.AWAKE
        log.info("engine.awake")
        self._sessions.broadcast(Notice("AWAKE", "The engine is awake; requests are being recomputed."))
        self._awake.set()
        return True

    def _end_order(self, error: TetradError) -> None:
        self.level, self._state = 0, _State.AWAKE
        assert self._fallen is not None
        self._fallen.set_exception(error)
        self._fallen.exception()  # the caller may have disconnected

    def _notice(self) -> Notice:
        return Notice("SLEEPING", f"The engine sleeps at level {self.level}; requests wait until it is woken up.")
