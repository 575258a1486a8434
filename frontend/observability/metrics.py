"""FrontendMetrics: vLLM's metrics with Tetrad's prefix, and the phases of a request. Updated per step and per request.

The time from arrival to the last token is the sum of request_intake_time, request_hop_time, request_queue_time,
request_prefill_time and request_detokenize_time, all in step_metrics.py, and of request_decode_time. Clocks of two machines are
never compared: the engine core reports the time from a request's arrival there to its first token, and the hop is the rest of
the time measured here.
"""

import functools
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, cast, get_args

from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.observability.scheduler_metrics import SchedulerMetrics
from tetrad.frontend.observability.series import LATENCY, PER_TOKEN, Series
from tetrad.frontend.observability.step_metrics import StepMetrics
from tetrad.frontend.request.admission import Admission
from tetrad.frontend.request.outputs import FinishReasonName
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.steps import Step
from tetrad.services.errors import Overloaded, TetradError
from tetrad.services.observability.metrics import SECONDS_OF_A_STEP, TOKENS, render

_COUNTS = (1, 2, 5, 10, 20)
_MOST_ADAPTERS = 64
"""Maximum number of adapters with a separate series."""


class FrontendMetrics:
    """The metrics of one frontend, in a separate registry, so that one process may have several frontends.

    Args:
        prefix: "tetrad", or "vllm" for existing dashboards.
        model_name: label of every series.

    Attributes:
        steps: the metrics that change with each engine step.
    """

    def __init__(self, *, prefix: str = "tetrad", model_name: str = "") -> None:
        series = self._series = Series(prefix, model_name)
        self.registry = series.registry
        self.model_name = model_name
        self._scheduler = SchedulerMetrics(prefix, model_name)
        self.registry.register(self._scheduler)
        self._tokenizers = series.gauge("num_tokenizers_connected", "Tokenizers with an open connection.")
        self._engines = series.gauge("num_engines_connected", "Engine cores with an open session.")
        self._losses = series.counter("backend_losses", "Times that a tokenizer or an engine core was lost.")
        self._num_losses = 0
        self._prefills = series.counters(
            "remote_prefills",
            "Prompts sent first to an engine core with kv-role producer, by outcome: done, or failed (then the consumer "
            "computes the prompt).",
            "outcome",
        )
        for outcome in ("done", "failed"):
            self._prefills.labels(model_name, outcome)
        self.steps = StepMetrics(series)

        self._success = series.counters("request_success", "Requests ended, by reason.", "finished_reason")
        for reason in get_args(FinishReasonName):  # series start at zero, so that the first event is an increase
            self._success.labels(model_name, reason)
        self._lora_requests = series.counters(
            "lora_requests",
            "Requests ended, by adapter; empty: the model itself. other: adapters beyond the first 64.",
            "adapter",
        )
        self._lora_requests.labels(model_name, "")
        self._adapters: set[str] = set()
        self._errors = series.counters("request_errors", "Requests refused or failed, by reason.", "reason")
        self._overloaded = series.counters(
            "admission_rejections", "Requests refused because a queue limit is reached.", "reason"
        )
        self._overloaded.labels(model_name, Overloaded.reason)

        self._http = series.counters("http_requests", "HTTP requests answered.", "handler", "method", "status")
        self._http_seconds = series.latencies(
            "http_request_duration_seconds", "Duration of an HTTP request, including its stream.", "handler"
        )

        self._tpot = series.histogram(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", PER_TOKEN
        )
        self._e2e = series.histogram("e2e_request_latency_seconds", "Arrival to last token.", LATENCY)
        self._decode = series.histogram("request_decode_time_seconds", "First to last token.", LATENCY)
        self._inference = series.histogram("request_inference_time_seconds", "Scheduled to last token.", LATENCY)

        self._request_prompt = series.histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_generation = series.histogram("request_generation_tokens", "Tokens a request generated.", TOKENS)
        self._request_longest = series.histogram(
            "request_max_num_generation_tokens", "Tokens of the longest output of a request.", TOKENS
        )
        self._request_preemptions = series.histogram("request_num_preemptions", "Preemptions of a request.", (0, *_COUNTS))
        self._params_n = series.histogram("request_params_n", "The n of a request.", _COUNTS)
        self._params_max_tokens = series.histogram("request_params_max_tokens", "The max_tokens of a request.", TOKENS)

        self._tokenizer_calls = series.latencies(
            "tokenizer_round_trip_seconds", "A tokenizer call, including its wait in the batch queue.", "method"
        )
        self._detokenize_step = series.histogram(
            "detokenize_round_trip_seconds",
            "From sending the tokens of a step to the tokenizer to receiving their texts.",
            SECONDS_OF_A_STEP,
        )

    def render(self) -> bytes:
        """Return these metrics and those of the process in Prometheus' text format."""
        return render(self.registry)

    def watch(self, admission: Admission) -> None:
        """Export the numbers in use of an admission from now on."""
        unfinished = self._series.gauge("requests_unfinished", "Unfinished requests; each of n outputs counts.")
        unfinished.set_function(lambda: admission.num_requests)
        queued = self._series.gauge("prompt_tokens_queued", "Prompt tokens of requests before their first generated token.")
        queued.set_function(lambda: admission.num_queued_tokens)

    # --- engine cores and tokenizers --------------------------------------------------------------------------------

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

    def observe_prefill(self, *, is_done: bool) -> None:
        """Record the end of a first phase, in which a producer computed a prompt or failed to."""
        self._prefills.labels(self.model_name, "done" if is_done else "failed").inc()

    def observe_tokenizer_call(self, method: str, seconds: float) -> None:
        """Record the duration of an answered tokenizer call."""
        self._tokenizer_calls.labels(self.model_name, method).observe(seconds)

    def observe_detokenized(self, seconds: float) -> None:
        """Record the duration of detokenizing one step."""
        self._detokenize_step.observe(seconds)

    def observe_scheduler(self, step: Step) -> None:
        """Record the scheduler's facts of a step."""
        if step.scheduler is not None:
            self._scheduler.note(step.engine_index, step.scheduler)

    # --- requests ---------------------------------------------------------------------------------------------------

    def observe_finished(self, request: RequestState, error: TetradError | None, *, idle: bool) -> None:
        """Record the end of a request; `idle`: the frontend has no other unfinished request."""
        times = request.metrics
        unsent = "abort" if error is None else "error"
        for sequence in request.sequences:
            self._success.labels(self.model_name, sequence.finish_reason or unsent).inc()
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
        num_cached = sum(sequence.num_cached_tokens for sequence in request.sequences)
        self.steps.count_prompt(request.num_prompt_tokens, num_cached)

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
