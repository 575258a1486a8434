"""RequestSpans: records the phases of an ended request in the engine core as spans: queue, prefill, decode.

Called by the engine, on the event loop. Each phase begins where the one before ends, so that they add up to the time that a
request spent in the engine core. Only requests of a trace get spans. Knows times; of the events in between, only lost workers.
"""

import time
from collections.abc import Iterable

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.services.observability.tracing import Attributes, Tracer


class RequestSpans:
    """The spans of one engine core's requests.

    Args:
        tracer: the engine core's tracer.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._losses: dict[int, list[float]] = {}  # request key -> times of worker losses, in monotonic seconds

    def note_loss(self, requests: Iterable[Request]) -> None:
        """Note that the worker was lost while these requests were unfinished; they continue on the next worker."""
        if self._tracer.is_on:
            now = time.monotonic()
            for request in requests:
                self._losses.setdefault(request.key, []).append(now)

    def record(self, request: Request) -> None:
        """Record the spans of a request that has ended."""
        losses = self._losses.pop(request.key, [])
        if not self._tracer.is_on or not request.context.traceparent:
            return
        began = (request.queued_at, request.scheduled_at, request.first_token_at)
        phases = [(name, at) for name, at in zip(("queue", "prefill", "decode"), began, strict=True) if at]
        ends = [*(at for _, at in phases[1:]), time.monotonic()]
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        for (name, start), end in zip(phases, ends, strict=True):
            start_ns, end_ns = int(start * 1e9) + to_wall_ns, int(end * 1e9) + to_wall_ns
            is_last = name == phases[-1][0]
            span = self._tracer.start_span(name, request.context, start_ns=start_ns, attributes=_facts(request, name))
            for loss in losses:
                if start <= loss and (is_last or loss < end):
                    span.add_event("worker_lost", at_ns=int(loss * 1e9) + to_wall_ns)
            span.end(at_ns=end_ns, error=_error_of(request) if is_last else "")


def _facts(request: Request, phase: str) -> Attributes:
    facts: dict[str, str | int | float | bool] = {
        "gen_ai.request.id": request.request_id,
        "tetrad.preemptions": request.num_preemptions,
    }
    if phase == "prefill":
        return facts | {
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "tetrad.cached_tokens": max(request.num_cached_tokens, 0),
        }
    if phase == "decode":
        return facts | {"gen_ai.usage.completion_tokens": request.num_output_tokens, "tetrad.status": request.status.name}
    return facts | {"tetrad.priority": request.priority}


def _error_of(request: Request) -> str:
    return request.status.name if request.status is RequestStatus.FINISHED_ERROR else ""
