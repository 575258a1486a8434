"""Recovery: handles the loss of a worker until another one is connected.

Called by the engine, on the event loop. It notifies the sessions and requeues the running requests to be recomputed. The
requests in flight are recorded until it is known whether the worker crashed: after a mere loss of connection the same instance
reconnects. After the timeout waiting requests fail, and new ones are refused until a worker is connected.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.engine.crash_isolation import CrashIsolation
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.engine_core_svc.worker.group import Loss, PlanStream
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.process import EXIT_PERMANENT, exit_code_of
from tetrad.services.timers.running_time import RunningTimer

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0

log = get_logger()


class ConnectsWorkers(Protocol):
    """Opens streams of plans to the workers; see WorkerGroup."""

    async def connect(self, on_change: Callable[[], None]) -> PlanStream:
        """See WorkerGroup."""


class Recovery:
    """The state of an engine while it has no worker.

    Args:
        scheduler, suspects, sessions, condition: those of the engine.
        timeout_s: seconds that requests wait for a worker.
        give_up: ends every request with an error.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        suspects: CrashIsolation,
        sessions: Sessions,
        condition: Condition,
        *,
        timeout_s: float,
        give_up: Callable[[Unavailable], None],
    ) -> None:
        self._scheduler, self._suspects, self._sessions, self._condition = scheduler, suspects, sessions, condition
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._loss: Loss | None = None
        self._lost_instance = ""
        self._expiry: RunningTimer | None = None
        self._is_overdue = False
        self._notice: Notice | None = None

    def notify(self, session: Session) -> None:
        """Send the notice of the loss to a session that opens while there is no worker."""
        if self._notice is not None:
            session.outbox.put(self._notice)

    def lose(self, loss: Loss, instance_id: str) -> None:
        """Requeue the running requests: the worker is lost."""
        text = loss.error.message
        log.error(
            "worker.lost", error=text, reason=loss.error.reason, is_crash=loss.is_crash, running=len(self._scheduler.running)
        )
        self._notice = Notice("WORKER_LOST", f"The worker was lost ({text}); requests go on when it is back.")
        self._sessions.broadcast(self._notice)
        self._loss, self._lost_instance = loss, instance_id
        self._suspects.note_loss()
        self._scheduler.forget_worker()
        self._note_absence(f"The worker was lost: {text}")

    async def find_worker(self, workers: ConnectsWorkers, on_change: Callable[[], None]) -> PlanStream:
        """Return an open stream of plans; try again whenever the worker is unreachable or fails meanwhile.

        Raises the worker's error if a retry cannot succeed.
        """
        pause_s = _MIN_PAUSE_S
        while True:
            try:
                return await workers.connect(on_change)
            except TetradError as error:
                if exit_code_of(error) == EXIT_PERMANENT:
                    raise
                self._note_absence(f"There is no worker: {error.message}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def regain(self, instance_id: str) -> list[Request]:
        """Note that a worker is connected; return the requests that crashed the last one, which the caller must end."""
        self.close()
        self._is_overdue = False
        self._condition.set_good()
        loss, self._loss, self._notice = self._loss, None, None
        if loss is None:
            return []
        is_same = bool(instance_id) and instance_id == self._lost_instance
        crashed = not is_same if loss.is_crash is None else loss.is_crash
        log.info("worker.recovered", crashed=crashed, same_instance=is_same, requests=len(self._scheduler.requests))
        self._sessions.broadcast(Notice("RECOVERED", "The worker is back; requests are being recomputed."))
        return self._suspects.resolve_loss(crashed=crashed, elsewhere=loss.is_elsewhere)

    def check_not_overdue(self) -> None:
        """Raise Unavailable if the timeout has passed without a worker."""
        if self._is_overdue:
            raise self._unavailable()

    def close(self) -> None:
        """Stop the timer."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _note_absence(self, problem: str) -> None:
        """Report that there is no worker, and start the timer."""
        self._condition.set_problem(problem)
        if self._expiry is None and not self._is_overdue:
            self._expiry = RunningTimer(self._timeout_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._is_overdue = True
        self._give_up(self._unavailable())

    def _unavailable(self) -> Unavailable:
        text = f"No worker came back within {self._timeout_s:g} s ({self._condition.problem})."
        return Unavailable(text, retry_after_s=self._timeout_s)
