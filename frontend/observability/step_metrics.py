"""StepMetrics: the metrics that an engine step changes: its tokens, the times between them, and the phases before first tokens.

Hundreds of sequences receive a token in one step, and most of them received the previous token in the same earlier step: so the
step has few different gaps between tokens, each with many sequences. The output processor sums a step in a StepTally, so that
metrics change once per step.
"""

import time

from tetrad.frontend.observability.series import LATENCY, PER_TOKEN, Series
from tetrad.frontend.request.request_state import RequestState
from tetrad.services.observability.metrics import TOKENS

# vLLM's bucket limits, and smaller ones for faster devices.
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_TOKENS_OF_A_STEP = (1, *(2**exponent for exponent in range(3, 15)))


class StepTally:
    """The sums of one step.

    Attributes:
        now: time in seconds of the wall clock when the tokens are ready for callers; the caller updates it.
        num_tokens: number of generated tokens.
        gaps: seconds between two tokens of a sequence -> number of such gaps. Tokens that arrive together share the time.
        first: requests that received their first token.
    """

    __slots__ = ("first", "gaps", "now", "num_tokens")

    def __init__(self) -> None:
        self.now = time.time()
        self.num_tokens = 0
        self.gaps: dict[float, int] = {}
        self.first: list[RequestState] = []

    def add(self, last_token_time: float | None, num_tokens: int) -> None:
        """Count a sequence's tokens; `last_token_time` is the time of its previous tokens, None for its first ones."""
        self.num_tokens += num_tokens
        if last_token_time is not None:
            gap = (self.now - last_token_time) / num_tokens
            self.gaps[gap] = self.gaps.get(gap, 0) + num_tokens


class StepMetrics:
    """The metrics of tokens and of first tokens.

    Args:
        series: creates the metrics.
    """

    def __init__(self, series: Series) -> None:
        self._prompt_tokens = series.counter("prompt_tokens", "Prompt tokens of requests that got their first token.")
        self._prompt_tokens_cached = series.counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._generation_tokens = series.counter("generation_tokens", "Tokens generated.")
        self._iteration_tokens = series.histogram(
            "iteration_tokens_total", "Prompt and generated tokens of a step.", _TOKENS_OF_A_STEP
        )
        self._itl = series.histogram("inter_token_latency_seconds", "From one token of a sequence to the next.", PER_TOKEN)
        self._ttft = series.histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._intake = series.histogram(
            "request_intake_time_seconds", "From arrival to the engine queue: checks and tokenization.", LATENCY
        )
        self._hop = series.histogram(
            "request_hop_time_seconds",
            "Time outside the engine core until the first token: both directions of the session.",
            LATENCY,
        )
        self._queue = series.histogram("request_queue_time_seconds", "Time before a request was scheduled.", LATENCY)
        self._prefill = series.histogram("request_prefill_time_seconds", "Scheduled to first token.", LATENCY)
        self._detokenize = series.histogram("request_detokenize_time_seconds", "From the first token to its text.", LATENCY)
        self._request_computed = series.histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not in the prefix cache.", TOKENS
        )

    def observe(self, tally: StepTally) -> None:
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

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Count the tokens of a prompt; `num_cached` of them were in the prefix cache."""
        self._prompt_tokens.inc(num_tokens)
        self._prompt_tokens_cached.inc(num_cached)

    def _observe_first_token(self, request: RequestState) -> None:
        num_tokens, num_cached = request.num_prompt_tokens, request.num_cached_tokens or 0
        self.count_prompt(num_tokens, num_cached)
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
