"""Sleep: an engine that has given its device's memory up, from one order of an operator's to the next.

Orders come from the admin service; the engine's run loop calls `rest` when what was in flight is back and its stream to the
worker is closed; all on the event loop. The worker is brought up again as after a loss. Sessions and health are told. Knows the
worker's lifecycle; knows no requests.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum

from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.engine_core_svc.worker.link import WorkerLink
from tetrad.services.errors import AlreadyExists, TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()


class _State(Enum):
    AWAKE = 0
    ORDERED = 1  # what is in flight still comes back
    FALLING = 2  # the worker is at it
    ASLEEP = 3


class Sleeper:
    """Whether the engine sleeps, and who waits for that.

    Args:
        link: to the worker that sleeps with it.
        sessions, condition: the engine's.

    Attributes:
        level: at which it sleeps, or is about to; 0: at none.
    """

    def __init__(self, link: WorkerLink, sessions: Sessions, condition: Condition) -> None:
        self._link, self._sessions, self._condition = link, sessions, condition
        self.level = 0
        self._state = _State.AWAKE
        self._fallen: asyncio.Future[None] | None = None  # the answer to the order
        self._roused, self._awake = asyncio.Event(), asyncio.Event()

    @property
    def is_ordered(self) -> bool:
        """Whether the engine should come to rest."""
        return self._state is _State.ORDERED

    @property
    def is_asleep(self) -> bool:
        """Whether device memory is given up, wholly or in part."""
        return self._state is _State.ASLEEP

    def check_awake(self) -> None:
        """Unavailable while the engine sleeps: a new request would wait for nobody knows how long."""
        if self.is_asleep:
            raise Unavailable(f"The engine sleeps at level {self.level}; wake it up first.", reason="SLEEPING")

    def greet(self, session: Session) -> None:
        """Tell a session that is opened meanwhile."""
        if self.is_asleep:
            session.outbox.put(self._notice())

    # --- orders -----------------------------------------------------------------------------------------------------

    def order(self, level: int) -> "asyncio.Future[None]":
        """Return what is done when the engine sleeps at this level, as it may already, or fails if it cannot.

        Raises AlreadyExists if it sleeps at another one.
        """
        if self.level not in (0, level):
            raise AlreadyExists(f"The engine sleeps at level {self.level}; wake it up first.", reason="SLEEPING")
        if self._state is _State.AWAKE:
            self.level, self._state = level, _State.ORDERED
            self._fallen = asyncio.get_running_loop().create_future()
        assert self._fallen is not None
        return self._fallen

    async def wake_up(self, tags: Iterable[str]) -> None:
        """Return when the engine is awake, or when the parts that `tags` name are back and others still sleep.

        Raises what the worker answers; the engine then sleeps on.
        """
        if self._state is _State.ORDERED:
            self._end_order(Unavailable("The engine was woken up before it slept."))
        if self._state is _State.FALLING and self._fallen is not None:
            await asyncio.wait([self._fallen])
        if self._state is _State.ASLEEP and not await self._link.wake_up(list(tags)):
            self._roused.set()
            await self._awake.wait()

    # --- what the run loop calls --------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Put the worker to sleep and return when it was woken up; at once if the order was withdrawn or cannot be followed."""
        if self._state is not _State.ORDERED:
            return
        self._state = _State.FALLING
        try:
            await self._link.sleep(self.level)
        except TetradError as error:
            self._end_order(error)
            return
        self._state = _State.ASLEEP
        self._roused.clear()
        self._awake.clear()
        log.info("engine.asleep", level=self.level)
        self._condition.set_problem(f"The engine sleeps at level {self.level}")
        self._sessions.tell_all(self._notice())
        assert self._fallen is not None
        self._fallen.set_result(None)
        await self._roused.wait()

    def note_worker(self) -> bool:
        """A worker is there; return whether the engine slept until now."""
        if not self.is_asleep:
            return False
        self.level, self._state = 0, _State.AWAKE
        log.info("engine.awake")
        self._sessions.tell_all(Notice("AWAKE", "The engine is awake; requests are being recomputed."))
        self._awake.set()
        return True

    def _end_order(self, error: TetradError) -> None:
        self.level, self._state = 0, _State.AWAKE
        assert self._fallen is not None
        self._fallen.set_exception(error)
        self._fallen.exception()  # whoever ordered it may have left

    def _notice(self) -> Notice:
        return Notice("SLEEPING", f"The engine sleeps at level {self.level}; requests wait until it is woken up.")
