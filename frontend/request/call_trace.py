"""CallTrace: records the span `llm_request` of one client call, from its arrival to its complete answer, with its phases.

Made where a call arrives (HTTP, public gRPC, or AsyncLLM for programs). All code of the same task and of tasks it starts finds
the call in a context variable. A call that uses no other service has no trace. Attributes have vLLM's names.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from tetrad.frontend.request.outputs import RequestMetrics
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.services.observability.tracing import Attributes, NoTracer, Span, Tracer, reason_of, spanned
from tetrad.services.request_context import REQUEST_ID, RequestContext, bind_context

_numbers = itertools.count(1)


class CallTrace:
    """The trace of one client call.

    Args:
        tracer: the frontend's tracer.
        context: the caller's request id and parent span.

    Attributes:
        context: the context of all work for this call.
        number: unique number in this process, starting at 1.
    """

    def __init__(self, tracer: Tracer, context: RequestContext) -> None:
        self._tracer = tracer
        self._arrived_ns = time.time_ns()
        self._span = tracer.start_trace("llm_request", context, start_ns=self._arrived_ns)
        self.context = self._span.context
        self.number = next(_numbers)
        self._is_used = False
        self._num_requests = 0  # requests that have not ended
        self._is_answered = self._is_over = False
        self._last_end_ns = 0
        self._error = ""
        self._num_prompt_tokens = self._num_generation_tokens = self._num_sequences = 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make this the current call of the task inside the context."""
        outer = _current.get()
        _current.set(self)
        try:
            with bind_context(self.context):
                yield
        finally:
            _current.set(outer)  # not by a token, as in bind_context

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Make this the current call of the task inside the context; on leaving, the call has its answer."""
        try:
            with self.working():
                yield
        except BaseException as error:
            self.fail(reason_of(error))
            raise
        finally:
            self.close()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a span around a call to another service, which is made inside the context."""
        self._begin_work()
        try:
            with spanned(self._tracer, name, kind="client"):
                yield
        except BaseException as error:
            self.fail(reason_of(error))
            raise

    def start_request(self, model: str) -> None:
        """Record the start of a request to the engine cores: the call ends after all of its requests."""
        self._begin_work()
        self._num_requests += 1
        self._span.set_attributes({"gen_ai.response.model": model})

    def start_sequence(self, sequence: Sequence) -> Span:
        """Start and return the span of one sequence, which lasts until the engine core has finished it."""
        attributes: Attributes = {"gen_ai.request.id": sequence.request_id, "tetrad.sequence.index": sequence.index}
        return self._tracer.start_span("generate", self.context, kind="client", attributes=attributes)

    def end_sequence(self, sequence: Sequence, received_ns: int | None) -> None:
        """End the span of a sequence.

        Args:
            sequence: a sequence that has ended.
            received_ns: arrival of its last step, which has been detokenized since; None: it was not ended by a step.
        """
        span, reason = sequence.span, sequence.finish_reason or "abort"
        span.set_attributes(
            {"gen_ai.usage.completion_tokens": len(sequence.output_token_ids), "gen_ai.response.finish_reason": reason}
        )
        span.end(at_ns=received_ns, error=reason if reason in ("abort", "error") else "")
        if received_ns is not None:
            self._tracer.start_span("detokenize", self.context, start_ns=received_ns).end()

    def end_request(self, params: SamplingParams, num_prompt_tokens: int, metrics: RequestMetrics, error: str) -> None:
        """Record the end of a request; `error` is the reason of a failure, else empty."""
        self._num_prompt_tokens += num_prompt_tokens
        self._num_generation_tokens += metrics.num_generation_tokens
        self._num_sequences += params.n
        if self._tracer.is_on:
            self._span.set_attributes(_attributes_of(params, metrics))
        if error:
            self.fail(error)
        self.release_request()

    def release_request(self) -> None:
        """Undo `start_request`: the request has ended, or was not sent."""
        self._num_requests -= 1
        self._last_end_ns = time.time_ns()
        self._end_if_over()

    def fail(self, reason: str) -> None:
        """Record the reason of a failure, unless the call has one already."""
        self._error = self._error or reason

    def close(self) -> None:
        """Record that the call has its complete answer."""
        self._is_answered = True
        if self._last_end_ns and not self._num_requests:
            self._tracer.start_span("respond", self.context, start_ns=self._last_end_ns).end()
        self._end_if_over()

    def _begin_work(self) -> None:
        if not self._is_used:
            self._is_used = True
            self._tracer.start_span("receive", self.context, start_ns=self._arrived_ns).end()

    def _end_if_over(self) -> None:
        if self._is_over or not self._is_used or not self._is_answered or self._num_requests:
            return
        self._is_over = True
        self._span.set_attributes(
            {
                "gen_ai.request.id": self.context.request_id,
                "gen_ai.usage.prompt_tokens": self._num_prompt_tokens,
                "gen_ai.usage.completion_tokens": self._num_generation_tokens,
                "gen_ai.usage.num_sequences": self._num_sequences,
                "gen_ai.latency.e2e": (time.time_ns() - self._arrived_ns) / 1e9,
            }
        )
        self._span.end(error=self._error)


NO_CALL = CallTrace(NoTracer(), RequestContext())
_current: ContextVar[CallTrace | None] = ContextVar("call_trace", default=None)


def current_call() -> CallTrace | None:
    """Return the current call of this task; None: it has none."""
    return _current.get()


@contextlib.contextmanager
def call_phase(name: str) -> Iterator[None]:
    """Record a span around a call to another service, if this task has a current call."""
    call = _current.get()
    with call.phase(name) if call is not None else contextlib.nullcontext():
        yield


def program_call(tracer: Tracer, request_id: str, trace_headers: Mapping[str, str]) -> CallTrace:
    """Return a call for a request of a program in this process; the call ends with its request."""
    call = CallTrace(tracer, RequestContext.from_headers({**trace_headers, REQUEST_ID: request_id}))
    call.close()
    return call


def _attributes_of(params: SamplingParams, metrics: RequestMetrics) -> Attributes:
    first, last, prefill_s = metrics.first_token_time, metrics.last_token_time, metrics.prefill_time_s
    decode_s = None if first is None or last is None else last - first
    found = {
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.latency.time_to_first_token": metrics.first_token_latency,
        "gen_ai.latency.time_in_queue": metrics.queued_time_s,
        "gen_ai.latency.time_in_model_prefill": prefill_s,
        "gen_ai.latency.time_in_model_decode": decode_s,
        "gen_ai.latency.time_in_model_inference": None if prefill_s is None or decode_s is None else prefill_s + decode_s,
    }
    return {name: value for name, value in found.items() if value is not None}
