"""RequestOutput and its parts: the outputs of a request. Public Python types with vLLM's names."""

from dataclasses import dataclass
from typing import Any, Literal

from tetrad.frontend.request.position_logprobs import FlatLogprobs, Positions, joined
from tetrad.frontend.request.position_logprobs import Logprob as Logprob
from tetrad.frontend.request.position_logprobs import PositionLogprobs as PositionLogprobs
from tetrad.frontend.request.sampling_values import check_integer, check_text, wrong
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics
from tetrad.frontend.request.weight_versions import Spans

_MAX_LORA_ID = 2**32 - 1

PromptPositions = list[PositionLogprobs | None] | FlatLogprobs
"""The candidates of a prompt's positions; the first has none."""

FinishReasonName = Literal["stop", "length", "abort", "error", "repetition"]


@dataclass(slots=True)
class LoRARequest:
    """The adapter of a request. InvalidRequest unless `lora_int_id` is in [1, 2**32 - 1], and name and path are valid text."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    load_inplace: bool = False

    def __post_init__(self) -> None:
        check_integer("lora_int_id", self.lora_int_id)
        if not 1 <= self.lora_int_id <= _MAX_LORA_ID:
            raise wrong("lora_int_id", f"lora_int_id must be in [1, {_MAX_LORA_ID}], got {self.lora_int_id}.")
        for name, text in (("lora_name", self.lora_name), ("lora_path", self.lora_path)):
            if not isinstance(text, str):
                raise wrong(name, f"{name} must be a string, got {text!r}.")
            check_text(name, text)


@dataclass(slots=True)
class RequestMetrics:
    """Times and counts of a request: times are wall clock in seconds since 1970, durations are in seconds.

    Attributes:
        submitted_time: when it was sent to an engine core.
        received_time: when the engine core's first tokens arrived.
        first_token_time, last_token_time: when the tokens were ready for the caller, detokenized if the request wants text.
        queued_time_s, prefill_time_s: from queued to first scheduled, and from there to the first token, on the engine's clock.
    """

    arrival_time: float
    submitted_time: float | None = None
    received_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    queued_time_s: float | None = None
    prefill_time_s: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        """The seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class CompletionOutput:
    """One of the n outputs of a request.

    Attributes:
        index: index among the n outputs.
        text: generated text (new text only for DELTA).
        token_ids: generated ids (new ids only for DELTA).
        cumulative_logprob: sum of the log-probabilities of all generated tokens, if logprobs were requested.
        logprobs: one entry per entry of token_ids, if requested; FlatLogprobs if the request has `flat_logprobs`.
        finish_reason: None until finished.
        stop_reason: the stop string or stop token id; None for EOS.
        spec_decode_metrics: counts of its drafts, once it is finished; None: the engine core does not measure single requests,
            or a stop string ended the output.
        weight_versions: the weights that computed all tokens so far, also for DELTA; None: those of the start.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Positions | None = None
    finish_reason: FinishReasonName | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    weight_versions: Spans | None = None
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None

    def finished(self) -> bool:
        """Whether this output is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """Progress of one request.

    Attributes:
        prompt: the text of the prompt, if it was given as text or rendered from a chat.
        prompt_logprobs: one entry per prompt token, the first is None; delivered once.
        prompt_token_id_logprobs: scores of `prompt_logprob_token_ids` [rows, ids] float32, a numpy array; delivered once.
        outputs: the outputs that made progress (all n in a final-only output).
        finished: whether all n outputs are complete.
        num_cached_tokens: prompt tokens found in the prefix cache; None until known.
        kv_transfer_params: where the prompt's KV blocks are kept for another engine core, for its request; once, at the end.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptPositions | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prompt_token_id_logprobs: Any = None

    def add(self, newer: "RequestOutput", *, aggregate: bool) -> None:
        """Merge a later output of the same request into this one.

        Args:
            newer: the later output; this object may reuse its parts.
            aggregate: append deltas (DELTA) rather than replace outputs (CUMULATIVE).
        """
        merge(self, newer, places_of(self), aggregate=aggregate)


def places_of(output: RequestOutput) -> dict[int, int]:
    """Return the position of each output in `output.outputs`, by the output's index."""
    return {each.index: place for place, each in enumerate(output.outputs)}


def merge(older: RequestOutput, newer: RequestOutput, places: dict[int, int], *, aggregate: bool) -> None:
    """Merge a later output into an earlier one and update `places`, its places by index. See RequestOutput.add."""
    older.finished |= newer.finished
    older.prompt_logprobs = older.prompt_logprobs or newer.prompt_logprobs
    if older.prompt_token_id_logprobs is None:
        older.prompt_token_id_logprobs = newer.prompt_token_id_logprobs
    older.num_cached_tokens = newer.num_cached_tokens
    older.kv_transfer_params = newer.kv_transfer_params or older.kv_transfer_params
    for output in newer.outputs:
        place = places.get(output.index)
        if place is None:
            places[output.index] = len(older.outputs)
            older.outputs.append(output)
        elif aggregate:
            _append(older.outputs[place], output)
        else:
            older.outputs[place] = output


def _append(older: CompletionOutput, newer: CompletionOutput) -> None:
    older.text += newer.text
    older.token_ids.extend(newer.token_ids)
    if newer.logprobs:
        older.logprobs = joined(older.logprobs, newer.logprobs)
    older.cumulative_logprob = newer.cumulative_logprob
    older.finish_reason = newer.finish_reason
    older.stop_reason = newer.stop_reason
    older.weight_versions = newer.weight_versions
    older.spec_decode_metrics = newer.spec_decode_metrics
