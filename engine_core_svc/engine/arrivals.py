"""Arrivals: queues or rejects the requests that sessions add.

Called by the sessions' streams, on the event loop. Beside the step loop, a queued request may have a timer for its deadline,
and a grammar that is compiled; both are dropped when it ends. Knows nothing of plans.
"""

import asyncio
from collections.abc import Callable

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.engine.admission import Admission
from tetrad.engine_core_svc.engine.guard import Guard
from tetrad.engine_core_svc.engine.publisher import Publisher
from tetrad.engine_core_svc.engine.queue_limits import QueueLimits
from tetrad.engine_core_svc.engine.submission_wire import Submission
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.outbox import Rejection
from tetrad.engine_core_svc.sessions.sessions import Session, Sessions
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Preparations
from tetrad.services.errors import DeadlineExceeded, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.request_context import NO_CONTEXT, RequestContext

log = get_logger()


class Deadlines:
    """One timer for each request with a deadline, on the running event loop, and none for the others.

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


class Arrivals:
    """Takes the requests of one engine.

    Args:
        scheduler, sessions, publisher, metrics: those of the engine.
        admission: checks submissions.
        queue_limits: refuse requests that would wait too long.
        compiler: makes the grammars of constrained requests.
        guard: keeps the errors of timers and of compilations for the step loop.
        check_running: raises Unavailable while requests that are new would only wait.
        on_change: called when a request may be planned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sessions: Sessions,
        publisher: Publisher,
        metrics: EngineMetrics,
        admission: Admission,
        queue_limits: QueueLimits,
        compiler: GrammarCompiler,
        guard: Guard,
        *,
        check_running: Callable[[Submission], None],
        on_change: Callable[[], None],
    ) -> None:
        self._scheduler, self._sessions, self._publisher, self._metrics = scheduler, sessions, publisher, metrics
        self._admission, self._queue_limits = admission, queue_limits
        self._check_running, self._on_change = check_running, on_change
        self._deadlines = Deadlines(guard.wrap(self._expire))
        self._preparations = Preparations(compiler, guard.wrap(self._grammar_ready), guard.wrap(self._grammar_failed))
        self._is_draining = False

    def add(self, session: Session, submission: Submission) -> None:
        """Queue a request, or send the session a rejection. After the session's end, ignore it: nobody waits for it."""
        if session not in self._sessions:
            return
        try:
            session.check_free(submission.request_id, submission.handle)
            self._check_room(submission, session)
            request = self._admission.accept(submission, session.key)
            self._scheduler.media.check(request, submission.encoder_inputs)
            if submission.lora is not None:
                request.adapter = self._scheduler.adapters.resolve(submission.lora, resumed=submission.resumed)
        except TetradError as error:
            self.reject(session, submission.request_id, error, submission.context)
            return
        self._sessions.add(request)
        self._deadlines.watch(request.key, submission.timeout_s)
        self._scheduler.add_request(request, submission.encoder_inputs)
        if submission.constraint is not None:
            self._preparations.start(request, submission.constraint)
        self._on_change()

    def reject(self, session: Session, request_id: str, error: TetradError, context: RequestContext = NO_CONTEXT) -> None:
        """Send a session the rejection of its request."""
        log.info("request.rejected", **context.log_fields(request_id), reason=error.reason, error=error.message)
        self._metrics.rejected.labels(error.reason).inc()
        session.outbox.put(Rejection(request_id, error))

    def forget(self, request: Request) -> None:
        """Drop the timer and the grammar of a request that has ended."""
        self._deadlines.forget(request.key)
        self._preparations.stop(request)

    def drain(self) -> None:
        """Reject every further request."""
        self._is_draining = True

    def check_open(self) -> None:
        """Raise Unavailable while the engine core is draining."""
        if self._is_draining:
            raise Unavailable("The engine core is draining.", reason="DRAINING")

    async def close(self) -> None:
        """Stop compiling grammars."""
        await self._preparations.close()

    def _check_room(self, submission: Submission, session: Session) -> None:
        self.check_open()
        self._check_running(submission)
        if not submission.resumed:  # else it was admitted before
            states, call = self._scheduler.states, (session.key, submission.call_number)
            self._queue_limits.check(
                num_reqs=states.num_waiting,
                num_of_call=states.calls.num_waiting(call) if submission.call_number else 0,
                num_tokens=states.num_waiting_tokens,
                new_tokens=len(submission.prompt_token_ids),
            )

    def _grammar_ready(self, request: Request, state: GrammarState) -> None:
        self._scheduler.grammar_ready(request, state)
        self._on_change()

    def _grammar_failed(self, request: Request, error: TetradError) -> None:
        """End a request that was never scheduled: its session gets a rejection, as for any other bad input."""
        session = self._sessions.of(request)
        self._publisher.end([request.key], RequestStatus.FINISHED_ERROR)
        if session is not None:
            self.reject(session, request.request_id, error, request.context)

    def _expire(self, key: int) -> None:
        self._publisher.fail([key], DeadlineExceeded("The request's deadline has passed."))
