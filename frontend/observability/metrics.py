"""FrontendMetrics: vLLM's metrics with Tetrad's prefix, and the phases of a request. Updated per step and per request.

The time from arrival to the last token is the sum of request_intake_time, request_hop_time, request_queue_time,
request_prefill_time, request_detokenize_time and request_decode_time. Clocks of two machines are never compared: the engine
core reports the time from a request's arrival there to its first token, and the hop is the rest of the time measured here.
"""

import functools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import Histogram as LabelledHistogram

from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.observability.scheduler_metrics import SchedulerMetrics
from tetrad.frontend.observability.step_tally import StepTally
from tetrad.frontend.request.admission import Admission
from tetrad.frontend.request.outputs import FinishReasonName
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.steps import Step
from tetrad.services.errors import Overloaded, TetradError
from tetrad.services.observability.histogram import Histogram
from tetrad.services.observability.metrics import SECONDS_OF_A_STEP, TOKENS, render

# vLLM's bucket limits, and smaller ones for faster devices.
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_PER_TOKEN = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_COUNTS = (1, 2, 5, 10, 20)
_MOST_ADAPTERS = 64
"""Maximum number of adapters with a separate series."""


class FrontendMetrics:
    """The metrics of one frontend, in a separate registry, so that one process may have several frontends.

    Args:
        prefix: "tetrad", or "vllm" for existing dashboards.
        model_name: label of every series.
    """

    def __init__(self, *, prefix: str = "tetrad", model_name: str = "") -> None:
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self.model_name = model_name
        self._scheduler = SchedulerMetrics(prefix, model_name)
        self.registry.register(self._scheduler)
        self._tokenizers = self._gauge("num_tokenizers_connected", "Tokenizers with an open connection.")
        self._engines = self._gauge("num_engines_connected", "Engine cores with an open session.")
        self._losses = self._counter("backend_losses", "Times that a tokenizer or an engine core was lost.")
        self._num_losses = 0

        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that got their first token.")
        self._prompt_tokens_cached = self._counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._success = self._counters("request_success", "Requests ended, by reason.", "finished_reason")
        for reason in get_args(FinishReasonName):  # series start at zero, so that the first event is an increase
            self._success.labels(model_name, reason)
        self._lora_requests = self._counters(
            "lora_requests",
            "Requests ended, by adapter; empty: the model itself. other: adapters beyond the first 64.",
            "adapter",
        )
        self._lora_requests.labels(model_name, "")
        self._adapters: set[str] = set()
        self._errors = self._counters("request_errors", "Requests refused or failed, by reason.", "reason")
        self._overloaded = self._counters(
            "admission_rejections", "Requests refused because a queue limit is reached.", "reason"
        )
        self._overloaded.labels(model_name, Overloaded.reason)

        self._http = self._counters("http_requests", "HTTP requests answered.", "handler", "method", "status")
        self._http_seconds = self._labelled(
            "http_request_duration_seconds", "Duration of an HTTP request, including its stream.", "handler"
        )

        self._iteration_tokens = self._histogram("iteration_tokens_total", "Prompt and generated tokens of a step.", TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", "From one token of a sequence to the next.", _PER_TOKEN)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", _PER_TOKEN
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self._intake = self._histogram(
            "request_intake_time_seconds", "From arrival to the engine queue: checks and tokenization.", _LATENCY
        )
        self._hop = self._histogram(
            "request_hop_time_seconds",
            "Time outside the engine core until the first token: both directions of the session.",
            _LATENCY,
        )
        self._queue = self._histogram("request_queue_time_seconds", "Time before a request was scheduled.", _LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", "Scheduled to first token.", _LATENCY)
        self._detokenize = self._histogram("request_detokenize_time_seconds", "From the first token to its text.", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token.", _LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", "Scheduled to last token.", _LATENCY)

        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not in the prefix cache.", TOKENS
        )
        self._request_generation = self._histogram("request_generation_tokens", "Tokens a request generated.", TOKENS)
        self._request_longest = self._histogram(
            "request_max_num_generation_tokens", "Tokens of the longest output of a request.", TOKENS
        )
        self._request_preemptions = self._histogram("request_num_preemptions", "Preemptions of a request.", (0, *_COUNTS))
        self._params_n = self._histogram("request_params_n", "The n of a request.", _COUNTS)
        self._params_max_tokens = self._histogram("request_params_max_tokens", "The max_tokens of a request.", TOKENS)

        self._tokenizer_calls = self._labelled(
            "tokenizer_round_trip_seconds", "A tokenizer call, including its wait in the batch queue.", "method"
        )
        self._detokenize_step = self._histogram(
            "detokenize_round_trip_seconds",
            "From sending the tokens of a step to the tokenizer to receiving their texts.",
            SECONDS_OF_A_STEP,
        )

    def render(self) -> bytes:
        """Return these metrics and those of the process in Prometheus' text format."""
        return render(self.registry)

    def watch(self, admission: Admission) -> None:
        """Export the numbers in use of an admission from now on."""
        unfinished = self._gauge("requests_unfinished", "Unfinished requests; each of n outputs counts.")
        unfinished.set_function(lambda: admission.num_requests)
        queued = self._gauge("prompt_tokens_queued", "Prompt tokens of requests before their first generated token.")
        queued.set_function(lambda: admission.num_queued_tokens)

    # --- the services behind ----------------------------------------------------------------------------------------

    def observe_backends(
        self, *, num_tokenizers: int, engines: Mapping[int, EngineInfo], known_engines: Collection[int], num_losses: int
    ) -> None:
        """Record the connected services.

        Args:
            num_tokenizers: number of usable tokenizers.
            engines: the connected engine cores, by this frontend's numbers.
            known_engines: numbers of the engine cores that are connected or may return.
            num_losses: number of losses of an engine core since the start.
        """
        self._tokenizers.set(num_tokenizers)
        self._engines.set(len(engines))
        self._scheduler.note_engines(engines, known_engines)
        self._losses.inc(num_losses - self._num_losses)
        self._num_losses = num_losses

    def observe_tokenizer_call(self, method: str, seconds: float) -> None:
        """Record the duration of an answered tokenizer call."""
        self._tokenizer_calls.labels(self.model_name, method).observe(seconds)

    def observe_detokenized(self, seconds: float) -> None:
        """Record the duration of detokenizing one step."""
        self._detokenize_step.observe(seconds)

    # --- steps ------------------------------------------------------------------------------------------------------

    def observe_scheduler(self, step: Step) -> None:
        """Record the scheduler's facts of a step."""
        if step.scheduler is not None:
            self._scheduler.note(step.engine_index, step.scheduler)

    def observe_step(self, tally: StepTally) -> None:
        """Record the tokens of a step."""
        num_prompt_tokens = 0
        for request in tally.first:
            num_prompt_tokens += request.num_prompt_tokens
            self._observe_first_token(request)
        for gap, number in tally.gaps.items():
            self._itl.observe(max(gap, 0), number)
        if tally.num_tokens:
            self._generation_tokens.inc(tally.num_tokens)
            self._iteration_tokens.observe(tally.num_tokens + num_prompt_tokens)

    def _observe_first_token(self, request: RequestState) -> None:
        num_tokens, num_cached = request.num_prompt_tokens, request.num_cached_tokens or 0
        self._prompt_tokens.inc(num_tokens)
        self._prompt_tokens_cached.inc(num_cached)
        self._request_computed.observe(num_tokens - num_cached)
        times = request.metrics
        first, arrival = times.first_token_time or 0.0, times.arrival_time
        self._ttft.observe(max(first - arrival, 0))
        if times.submitted_time is None or times.received_time is None:
            return
        self._intake.observe(max(times.submitted_time - arrival, 0))
        self._detokenize.observe(max(first - times.received_time, 0))
        if times.queued_time_s is not None and times.prefill_time_s is not None:
            self._queue.observe(times.queued_time_s)
            self._prefill.observe(times.prefill_time_s)
            hop_s = times.received_time - times.submitted_time - times.queued_time_s - times.prefill_time_s
            self._hop.observe(max(hop_s, 0))

    # --- requests ---------------------------------------------------------------------------------------------------

    def observe_finished(self, request: RequestState, error: TetradError | None, *, idle: bool) -> None:
        """Record the end of a request; `idle`: the frontend has no other unfinished request."""
        times = request.metrics
        for sequence in request.sequences:
            self._success.labels(self.model_name, sequence.finish_reason or "abort").inc()
        lora = request.lora_request
        self._lora_requests.labels(self.model_name, self._adapter_label("" if lora is None else lora.lora_name)).inc()
        if error is not None:
            self.observe_error(error)
        if times.finished_time is not None:
            self._e2e.observe(max(times.finished_time - times.arrival_time, 0))
        self._request_prompt.observe(request.num_prompt_tokens)
        self._request_generation.observe(times.num_generation_tokens)
        self._request_longest.observe(max(len(sequence.output_token_ids) for sequence in request.sequences))
        self._request_preemptions.observe(times.num_preemptions)
        self._params_n.observe(request.params.n)
        if request.params.max_tokens is not None:
            self._params_max_tokens.observe(request.params.max_tokens)
        self._observe_decode(request)
        if idle:
            self._scheduler.note_idle()

    def _adapter_label(self, name: str) -> str:
        if name and len(self._adapters) < _MOST_ADAPTERS:
            self._adapters.add(name)
        return name if not name or name in self._adapters else "other"

    def observe_pooled(self, request: RequestState) -> None:
        """Count the prompt tokens of an answered pooling request."""
        self._prompt_tokens.inc(request.num_prompt_tokens)
        self._prompt_tokens_cached.inc(sum(sequence.num_cached_tokens for sequence in request.sequences))

    def _observe_decode(self, request: RequestState) -> None:
        times = request.metrics
        if times.first_token_time is None or times.last_token_time is None:
            return
        decode_s = max(times.last_token_time - times.first_token_time, 0)
        self._decode.observe(decode_s)
        if times.prefill_time_s is not None:
            self._inference.observe(times.prefill_time_s + decode_s)
        if times.num_generation_tokens > len(request.sequences):
            self._tpot.observe(decode_s / (times.num_generation_tokens / len(request.sequences) - 1))

    def observe_error(self, error: TetradError) -> None:
        """Count a refused or failed request."""
        self._errors.labels(self.model_name, error.reason).inc()
        if isinstance(error, Overloaded):
            self._overloaded.labels(self.model_name, error.reason).inc()

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an answered HTTP request; `handler` is the path of the route, not the client's path."""
        self._http.labels(self.model_name, handler, method, str(status)).inc()
        self._http_seconds.labels(self.model_name, handler).observe(seconds)

    # --- series -----------------------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{self._prefix}:{name}", text, ["model_name"], registry=self.registry).labels(self.model_name)

    def _counter(self, name: str, text: str) -> Counter:
        return self._counters(name, text).labels(self.model_name)

    def _counters(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{self._prefix}:{name}", text, ["model_name", *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, limits: Sequence[float]) -> Histogram:
        labels = {"model_name": self.model_name}
        return Histogram(f"{self._prefix}:{name}", text, limits, registry=self.registry, labels=labels)

    def _labelled(self, name: str, text: str, *labels: str) -> LabelledHistogram:
        return LabelledHistogram(
            f"{self._prefix}:{name}", text, ["model_name", *labels], buckets=_LATENCY, registry=self.registry
        )


class HasMetrics(Protocol):
    """An object with metrics that count its refusals."""

    metrics: FrontendMetrics


P = ParamSpec("P")
T = TypeVar("T")


def counting_errors(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a method of an object with metrics: its errors are counted."""

    @functools.wraps(method)
    async def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except TetradError as error:
            cast(HasMetrics, args[0]).metrics.observe_error(error)
            raise

    return counted
