"""FrontendMetrics: vLLM's names under our prefix. Counted per step and per request, never per token."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from tetrad.frontend.request_state import RequestState
from tetrad.frontend.steps import SchedulerFacts, Step

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
_COUNTS = (1, 2, 5, 10, 20)


class FrontendMetrics:
    """The metrics of one frontend, in a registry of their own so that several frontends fit one process.

    Args:
        prefix: "tetrad", or "vllm" for existing dashboards.
        model_name: label of every series.
    """

    def __init__(self, *, prefix: str = "tetrad", model_name: str = "") -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._prefix = prefix
        self._model_name = model_name
        self._seen: dict[int, SchedulerFacts] = {}
        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._tokenizers = self._gauge("num_tokenizers_connected", "Tokenizers that answer.")
        self._engines = self._gauge("num_engines_connected", "Engine cores with an open session.")
        self._losses = self._counter("backend_losses", "Times that a tokenizer or an engine core was lost.")
        self._num_losses = 0
        self._preemptions = self._counter("num_preemptions", "Requests preempted.")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts proposed.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens proposed.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Proposed tokens accepted.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that got their first token.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._success = self._counter("request_success", "Requests ended, by reason.", "finished_reason")
        self._iteration_tokens = self._histogram("iteration_tokens_total", "Tokens of an engine step.", _TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "Time before a request was scheduled.", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token.", _LATENCY)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean time between a request's tokens.", _PER_TOKEN
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._request_generation = self._histogram("request_generation_tokens", "Tokens a request generated.", _TOKENS)
        self._params_n = self._histogram("request_params_n", "The n of a request.", _COUNTS)
        self._params_max_tokens = self._histogram("request_params_max_tokens", "The max_tokens of a request.", _TOKENS)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def observe_backends(self, *, num_tokenizers: int, num_engines: int, num_losses: int) -> None:
        """Note how many services are there, and how often one was lost since start."""
        self._tokenizers.set(num_tokenizers)
        self._engines.set(num_engines)
        self._losses.inc(num_losses - self._num_losses)
        self._num_losses = num_losses

    def observe_step(self, step: Step, num_tokens: int) -> None:
        """Count an engine step that brought `num_tokens` tokens to this frontend."""
        if num_tokens:
            self._generation_tokens.inc(num_tokens)
            self._iteration_tokens.observe(num_tokens)
        if step.scheduler is not None:
            self._observe_scheduler(step.engine_index, step.scheduler)

    def observe_first_token(self, request: RequestState) -> None:
        """Count a request's first token."""
        self._prompt_tokens.inc(len(request.prompt_token_ids))
        self._ttft.observe(max(time.time() - request.metrics.arrival_time, 0))

    def observe_finished(self, request: RequestState, *, idle: bool) -> None:
        """Count a request that ended; `idle`: it was the last one of this frontend."""
        metrics = request.metrics
        for sequence in request.sequences:
            self._success.labels(self._model_name, sequence.finish_reason or "abort").inc()
        end = metrics.finished_time or time.time()
        self._e2e.observe(max(end - metrics.arrival_time, 0))
        self._request_prompt.observe(len(request.prompt_token_ids))
        self._request_generation.observe(metrics.num_generation_tokens)
        self._params_n.observe(request.params.n)
        if request.params.max_tokens is not None:
            self._params_max_tokens.observe(request.params.max_tokens)
        if metrics.queued_time_s is not None:
            self._queue.observe(metrics.queued_time_s)
        if metrics.first_token_time is not None and metrics.last_token_time is not None:
            decode_s = max(metrics.last_token_time - metrics.first_token_time, 0)
            self._decode.observe(decode_s)
            if metrics.num_generation_tokens > len(request.sequences):
                self._tpot.observe(decode_s / (metrics.num_generation_tokens / len(request.sequences) - 1))
        if idle:
            # No step follows that would bring these back to zero.
            for gauge in (self._running, self._waiting):
                gauge.set(0)

    def _observe_scheduler(self, engine: int, new: SchedulerFacts) -> None:
        old = self._seen.get(engine)
        self._seen[engine] = new
        self._running.set(sum(facts.num_running for facts in self._seen.values()))
        self._waiting.set(sum(facts.num_waiting for facts in self._seen.values()))
        self._kv_usage.set(max(facts.kv_cache_usage for facts in self._seen.values()))
        for counter, name in (
            (self._queries, "prefix_cache_queries"),
            (self._hits, "prefix_cache_hits"),
            (self._preemptions, "num_preemptions"),
            (self._drafts, "num_drafts"),
            (self._draft_tokens, "num_draft_tokens"),
            (self._accepted, "num_accepted_tokens"),
        ):
            grown = getattr(new, name) - (getattr(old, name) if old is not None else 0)
            # An engine that was restarted counts from zero again.
            counter.inc(grown if grown >= 0 else getattr(new, name))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{self._prefix}:{name}", text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(f"{self._prefix}:{name}", text, ["model_name", *labels], registry=self.registry)
        return counter if labels else counter.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"{self._prefix}:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return histogram.labels(self._model_name)
