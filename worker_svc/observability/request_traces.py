"""RequestTraces: writes log entries and spans for the requests of one Execute stream.

Called by the servicer, on the event loop, with each plan and each result in order. A traced request has a span
`worker.prefill` until its first token and `worker.decode` until its last. A preempted or paused request has one pair of spans
for each time that it runs. The start of a step is computed from the measured duration in its result.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass

from tetrad.services.log import get_logger
from tetrad.services.observability.tracing import Attributes, Tracer
from tetrad.services.request_context import RequestContext
from tetrad.services.timers.idle_timer import IdleTimer
from tetrad.worker_svc.core.plan import NewRequest, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput

_PAUSE_S = 0.25
"""Seconds without a step after which running requests count as ended. Before that, the next plan names the ended requests."""

log = get_logger()


@dataclass(slots=True)
class _Phase:
    """A request's current phase, with times in nanoseconds of the wall clock."""

    name: str
    began_ns: int
    ended_ns: int
    num_tokens: int = 0
    compute_s: float = 0.0


@dataclass(slots=True)
class _Traced:
    request: NewRequest
    phase: _Phase | None = None


class RequestTraces:
    """The requests of one stream.

    Args:
        tracer: the worker's tracer.
        pause_s: seconds without a step after which running requests count as ended.
    """

    def __init__(self, tracer: Tracer, *, pause_s: float = _PAUSE_S) -> None:
        self._tracer = tracer
        self._pause_s = pause_s
        self._plans: deque[SchedulerOutput] = deque()
        self._contexts: dict[int, tuple[RequestContext, str]] = {}
        self._traced: dict[int, _Traced] = {}
        self._timer: IdleTimer | None = None

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Record a plan whose result will follow."""
        self._plans.append(plan)
        for new in plan.new_requests:
            log.debug("request.added", **new.context.log_fields(new.request_id), num_tokens=len(new.token_ids))

    def note_result(self, result: ModelRunnerOutput) -> None:
        """Record the result of the oldest plan."""
        plan, now_ns = self._plans.popleft(), time.time_ns()
        for handle in plan.removed_handles:
            self._end(handle)
        for new in plan.new_requests:
            self._begin(new, now_ns - int(result.compute_seconds * 1e9))
        for handle, error in result.failures:
            context, request_id = self._contexts.get(handle, (RequestContext(), ""))
            log.info("request.failed", **context.log_fields(request_id), reason=error.reason)
            self._end(handle, error.reason)
        if self._traced:
            self._note_step(plan, result, now_ns)

    def close(self) -> None:
        """End the spans of all remaining requests at the end of the stream."""
        for handle in list(self._contexts):
            self._end(handle)
        self._stop_timer()

    def _begin(self, new: NewRequest, began_ns: int) -> None:
        self._end(new.handle)
        self._contexts[new.handle] = new.context, new.request_id
        if self._tracer.is_on and new.context.traceparent:
            self._traced[new.handle] = _Traced(new, _Phase("worker.prefill", began_ns, began_ns))

    def _note_step(self, plan: SchedulerOutput, result: ModelRunnerOutput, now_ns: int) -> None:
        """Record the requests that ran in the step that ended now."""
        self._timer = self._timer or IdleTimer(self._pause_s, self._on_pause)
        self._timer.note()
        num_tokens = Counter(result.handles.tolist())
        for handle in (*(new.handle for new in plan.new_requests), *plan.cached.handles.tolist()):
            traced = self._traced.get(handle)
            if traced is None:
                continue
            if traced.phase is None:  # the request continues after a pause
                traced.phase = _Phase("worker.decode", now_ns - int(result.compute_seconds * 1e9), now_ns)
            phase = traced.phase
            phase.ended_ns, phase.compute_s = now_ns, phase.compute_s + result.compute_seconds
            phase.num_tokens += num_tokens[handle]
            if phase.name == "worker.prefill" and num_tokens[handle]:
                self._record(traced, phase)
                traced.phase = _Phase("worker.decode", now_ns, now_ns)
        for pooled in result.pooled:
            traced = self._traced.get(pooled.handle)
            if traced is not None and traced.phase is not None:
                self._record(traced, traced.phase)
                traced.phase = None

    def _on_pause(self) -> None:
        if self._plans:  # a step runs, and takes long
            return
        self._stop_timer()  # the next step starts the timer again
        for traced in self._traced.values():
            if traced.phase is not None and traced.phase.name == "worker.decode":
                self._record(traced, traced.phase)
                traced.phase = None

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()

    def _end(self, handle: int, error: str = "") -> None:
        self._contexts.pop(handle, None)
        traced = self._traced.pop(handle, None)
        if traced is not None and traced.phase is not None:
            self._record(traced, traced.phase, error)

    def _record(self, traced: _Traced, phase: _Phase, error: str = "") -> None:
        request = traced.request
        attributes: Attributes = {
            "gen_ai.request.id": request.request_id,
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "tetrad.tokens": phase.num_tokens,
            "tetrad.compute_seconds": phase.compute_s,
        }
        span = self._tracer.start_span(phase.name, request.context, start_ns=phase.began_ns, attributes=attributes)
        span.end(at_ns=phase.ended_ns, error=error)
