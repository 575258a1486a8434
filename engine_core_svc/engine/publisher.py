"""Publisher: sends outputs to the sessions, and ends requests with an output, with an error or without an answer.

Observers are events that report every change of the engine's state. Used on the event loop only.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from tetrad.engine_core_svc.core.plan import FINISH_REASONS, EngineCoreOutput, FinishReason
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.scheduler.stats import take_stats
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger

log = get_logger()


class Observers:
    """The events of all observers."""

    def __init__(self) -> None:
        self._events: set[asyncio.Event] = set()

    def observe(self) -> asyncio.Event:
        """Return an event that is set after every change; the caller clears it, and gives it back to `unobserve`."""
        event = asyncio.Event()
        self._events.add(event)
        return event

    def unobserve(self, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self._events.discard(event)

    def notify(self) -> None:
        """Set the events of all observers: the engine's state has changed."""
        for event in self._events:
            event.set()


class Publisher:
    """Publishes outputs, and ends requests.

    Args:
        scheduler: the engine's scheduler.
        sessions: the engine's sessions.
        observers: notified when outputs are published.
        metrics, spans: record requests that end.
        on_change: called after requests end, because another request may be the first in the queue then.
        on_end: called for each request that has ended.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sessions: Sessions,
        observers: Observers,
        metrics: EngineMetrics,
        spans: RequestSpans,
        *,
        on_change: Callable[[], None],
        on_end: Callable[[Request], None],
    ) -> None:
        self._scheduler, self._sessions, self._observers = scheduler, sessions, observers
        self._metrics, self._spans = metrics, spans
        self._on_change, self._on_end = on_change, on_end
        self._last_step_id = 0
        self._must_report_idle = False

    def begin_step(self, step_id: int) -> None:
        """Note the number of the step whose outputs are published next."""
        self._last_step_id = step_id

    def publish(self, outputs: list[EngineCoreOutput]) -> None:
        """Send outputs to the sessions. Requests that end between steps carry the last step's number, so numbers never fall."""
        for output in outputs:
            if output.prefill_stats is not None:
                output.request.first_token_at = time.monotonic()
        self._note_ended(output.request for output in outputs if output.finish_reason is not None)
        self._sessions.publish(self._last_step_id, outputs, take_stats(self._scheduler))
        self._observers.notify()

    def end(self, keys: Iterable[int], status: RequestStatus) -> None:
        """End requests without an answer; their blocks are freed at once or when the plan in flight has returned."""
        ended = self._scheduler.finish_requests(keys, status)
        self._sessions.remove(ended)
        self._note_ended(ended)
        self._must_report_idle |= bool(ended) and not self._scheduler.has_requests
        self._on_change()

    def fail(self, keys: Iterable[int], error: TetradError) -> None:
        """End requests and answer them with an error."""
        ended = self._scheduler.finish_requests(keys, RequestStatus.FINISHED_ERROR)
        self.publish([EngineCoreOutput(request, [], FinishReason.ERROR, error=error) for request in ended])
        self._on_change()

    def fail_all(self, error: TetradError) -> None:
        """End all requests and answer them with an error."""
        self.fail(list(self._scheduler.requests), error)

    def abort_all(self) -> None:
        """End all requests with the finish reason `abort`."""
        ended = self._scheduler.finish_requests(list(self._scheduler.requests), RequestStatus.FINISHED_ABORTED)
        self.publish([EngineCoreOutput(request, [], FinishReason.ABORT) for request in ended])

    def report_idle(self) -> None:
        """Send statistics once after the last abort: no step carries them, and gauges would keep their old values."""
        if self._must_report_idle:
            self._must_report_idle = False
            self._sessions.publish(self._last_step_id, [], take_stats(self._scheduler))

    def _note_ended(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._on_end(request)
            self._metrics.finished.labels(FINISH_REASONS[request.status].name.lower()).inc()
            self._spans.record(request)
            log.info(
                "request.finished",
                **request.context.log_fields(request.request_id),
                status=request.status.name,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                preemptions=request.num_preemptions,
            )
