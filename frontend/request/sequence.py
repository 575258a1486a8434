"""Sequence: one of the n outputs of an unfinished request: its ids, its text, and how much of them was delivered.

Owned by the output processor. Knows tokens, text and stop strings; knows nothing of streams or callers. Another engine core or
tokenizer can continue it from its ids and its number of raw characters.

Stop strings: the one that is complete first ends the text; of several, the first in the list. Text that could be the start of a
stop string is held back, so no part of one is ever delivered.
"""

from typing import NamedTuple

from tetrad.frontend.request.deadlines import Deadline
from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, LoRARequest
from tetrad.frontend.request.pooling import PooledTensor, PoolingParams
from tetrad.frontend.request.position_logprobs import FlatLogprobs, Positions, actual_logprobs
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics
from tetrad.frontend.request.weight_versions import Spans, with_tokens
from tetrad.services.observability.tracing import NO_SPAN, Span

# Number of prompt tokens that a detokenizer needs to decide on leading spaces and unfinished characters.
_CONTEXT_TOKENS = 16


class StopMatch(NamedTuple):
    """A stop string that was found, and the end of the text before or after it."""

    stop: str
    end: int


class StopStrings:
    """The stop strings of one request.

    Args:
        stops: non-empty strings; may be an empty tuple.
        include_in_output: whether the text ends after the stop string rather than before it.
    """

    __slots__ = ("_include", "_stops", "held_back")

    def __init__(self, stops: tuple[str, ...], *, include_in_output: bool) -> None:
        self._stops = stops
        self._include = include_in_output
        # Number of characters at the end of an unfinished text that are held back.
        self.held_back = 0 if include_in_output else max((len(stop) for stop in stops), default=1) - 1

    def __bool__(self) -> bool:
        return bool(self._stops)

    def find(self, text: str, num_new_chars: int) -> StopMatch | None:
        """Return the first stop string that the last `num_new_chars` characters of `text` complete, or None."""
        if not num_new_chars:
            return None
        best: tuple[int, int] | None = None  # (end of the stop string, its index)
        for order, stop in enumerate(self._stops):
            start = text.find(stop, max(0, len(text) - num_new_chars - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), order) < best):
                best = (start + len(stop), order)
        if best is None:
            return None
        completed, order = best
        stop = self._stops[order]
        return StopMatch(stop, completed if self._include else completed - len(stop))


class Sequence:
    """One output in progress.

    Args:
        request_id: unique id in messages.
        handle: number of 32 bits, unique among unfinished sequences.
        index: index among the n outputs.
        prompt_token_ids: shared with the other sequences of the request; never changed.
        params: sampling parameters of the request.
        seed: the seed of this sequence.
        max_tokens: maximum number of tokens to generate, limited to the context.
        deadline: when the engine ends the sequence; None: never.
        pooling: the pooling parameters; None: the sequence generates.

    Attributes:
        span: the trace's span from sending to the last step.
        pooled: the answer of a pooling sequence; None until it is received.
        num_cached_tokens: number of prompt tokens found in the prefix cache; set together with `pooled`.
        spec_decode_metrics: counts of its drafts, once they are known.
        weight_versions: the weights that computed the output's tokens; empty: they have no name.
    """

    __slots__ = (
        "_delivered_chars",
        "_delivered_tokens",
        "_interval",
        "_stops",
        "cumulative_logprob",
        "deadline",
        "finish_reason",
        "handle",
        "index",
        "last_token_time",
        "logprobs",
        "lora_request",
        "max_tokens",
        "num_cached_tokens",
        "num_engine_losses",
        "num_raw_chars",
        "num_tokens_at_loss",
        "output_token_ids",
        "params",
        "pooled",
        "pooling",
        "prompt_token_ids",
        "request_id",
        "seed",
        "span",
        "spec_decode_metrics",
        "stop_reason",
        "text",
        "weight_versions",
    )

    def __init__(
        self,
        request_id: str,
        handle: int,
        index: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        seed: int,
        max_tokens: int,
        lora_request: LoRARequest | None = None,
        deadline: Deadline | None = None,
        pooling: PoolingParams | None = None,
    ) -> None:
        self.request_id = request_id
        self.handle = handle
        self.index = index
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.seed = seed
        self.max_tokens = max_tokens
        self.lora_request = lora_request
        self.deadline = deadline
        self.pooling = pooling
        self.pooled: PooledTensor | None = None
        self.num_cached_tokens = 0
        self.output_token_ids: list[int] = []
        self.last_token_time: float | None = None
        self.text = ""
        # Number of characters that the tokenizer has sent; more than len(text) after a stop string has cut the text.
        self.num_raw_chars = 0
        # Number of consecutive losses of an engine core without a new token, and the number of tokens at the last loss.
        self.num_engine_losses = 0
        self.num_tokens_at_loss = 0
        self.logprobs: Positions | None = None if params.logprobs is None else FlatLogprobs() if params.flat_logprobs else []
        self.cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.finish_reason: FinishReasonName | None = None
        self.stop_reason: int | str | None = None
        self.span: Span = NO_SPAN
        self.weight_versions: Spans = ()
        self.spec_decode_metrics: RequestSpecDecodeMetrics | None = None
        self._stops = StopStrings(params.stops, include_in_output=params.include_stop_str_in_output)
        self._delivered_chars = 0
        self._delivered_tokens = 0
        self._interval = params.stream_interval or 1

    @property
    def finished(self) -> bool:
        """Whether the sequence has ended and takes no further tokens."""
        return self.finish_reason is not None

    @property
    def has_stops(self) -> bool:
        """Whether the text is searched for stop strings, which needs a delta for each token."""
        return bool(self._stops)

    def context_token_ids(self) -> list[int]:
        """Return the ids that initialize a detokenizer: the end of the prompt and all generated tokens."""
        return self.prompt_token_ids[-_CONTEXT_TOKENS:] + self.output_token_ids

    def add_token_ids(self, ids: list[int]) -> None:
        """Append new ids; `add_text` then adds their text, unless the request wants ids only."""
        self.output_token_ids += ids

    def add_text(self, delta: str) -> bool:
        """Append the text of the ids added last; if it completes a stop string, finish the sequence and return True."""
        if not delta:
            return False
        self.num_raw_chars += len(delta)
        self.text += delta
        if not self._stops or len(self.output_token_ids) <= self.params.min_tokens:
            return False
        match = self._stops.find(self.text, len(delta))
        if match is None:
            return False
        self.text = self.text[: match.end]
        self.finish("stop", match.stop)
        return True

    def add_logprobs(self, positions: Positions) -> None:
        """Append the log-probabilities of ids added before; the first entry of each position is the sampled token."""
        if self.logprobs is None or self.cumulative_logprob is None:
            return
        self.logprobs.extend(positions)
        self.cumulative_logprob += sum(actual_logprobs(positions))

    def note_weights(self, version: str, first: int) -> None:
        """Note the weights that computed the tokens from index `first` on; an empty version has no name."""
        if first < len(self.output_token_ids):
            self.weight_versions = with_tokens(self.weight_versions, version, first, len(self.output_token_ids))

    def finish(self, reason: FinishReasonName, stop_reason: int | str | None = None) -> None:
        """End the sequence."""
        self.finish_reason = reason
        self.stop_reason = stop_reason

    def take_output(self, kind: RequestOutputKind) -> CompletionOutput | None:
        """Return the output to deliver now, or None if there is nothing new to deliver."""
        if kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return None
        shown = len(self.text) if self.finished else max(self._delivered_chars, len(self.text) - self._stops.held_back)
        first_char, first_token = self._delivered_chars, self._delivered_tokens
        # With stop strings, ids whose whole text is held back are not delivered before their text.
        if not self.finished and shown == first_char and self.has_stops:
            return None
        if not self.finished and first_token > 0 and len(self.output_token_ids) < first_token + self._interval:
            return None
        self._delivered_chars, self._delivered_tokens = shown, len(self.output_token_ids)
        if kind is not RequestOutputKind.DELTA:
            first_char = first_token = 0
        return CompletionOutput(
            index=self.index,
            text=self.text[first_char:shown],
            token_ids=self.output_token_ids[first_token:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else self.logprobs[first_token:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            lora_request=self.lora_request,
            weight_versions=self.weight_versions or None,
            spec_decode_metrics=self.spec_decode_metrics,
        )
