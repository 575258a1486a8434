"""Steps: the results of one engine step as plain values. wire.py makes them, the output processor reads them."""

import time
from dataclasses import dataclass, field, replace

from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.outputs import FinishReasonName
from tetrad.frontend.request.pooling import PooledTensor
from tetrad.frontend.request.prompt_scores import PromptScores
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics
from tetrad.services.errors import InternalError, TetradError


@dataclass(slots=True)
class LogprobRows:
    """Candidates of consecutive positions, position after position; the first candidate is the actual token."""

    token_ids: list[int]  # [num_positions * width]
    logprobs: list[float]  # [num_positions * width]
    ranks: list[int]  # [num_positions]: of the first candidate
    width: int


@dataclass(slots=True)
class RichUpdate:
    """The parts of a sequence's output besides its tokens."""

    finish_reason: FinishReasonName | None = None
    stop_reason: int | str | None = None
    error: TetradError | None = None
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    prompt_scores: PromptScores | None = None
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None
    num_cached_tokens: int | None = None
    # Those of the cached tokens that were read from another engine core.
    num_external_tokens: int = 0
    num_preemptions: int = 0
    # From queued to first scheduled, and from there to the first token, on the engine's clock.
    queued_time_s: float | None = None
    prefill_time_s: float | None = None
    pooled: PooledTensor | None = None
    # Where the prompt's blocks are kept.
    kv_transfer: KvTransfer | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether the update belongs to the tokens of its own step, so that it cannot be merged with other steps."""
        return self.logprobs is not None or self.error is not None or self.finish_reason == "error"


class OddOutput(InternalError):
    """An engine's output for one sequence violates the contract. This request ends; others of the session continue."""

    reason = "PROTOCOL_ERROR"


@dataclass(slots=True)
class SchedulerFacts:
    """The scheduler's state after a step; counters count from the start of the engine."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_by_place: tuple[int, ...] = ()
    # Names of the LoRA adapters of running requests, and of those of waiting requests.
    running_loras: tuple[str, ...] = ()
    waiting_loras: tuple[str, ...] = ()
    # Images looked up in the encoder cache, and found there.
    mm_cache_queries: int = 0
    mm_cache_hits: int = 0


@dataclass(slots=True)
class Step:
    """One engine step's outputs for this frontend."""

    engine_index: int
    # (handle, new token ids, other parts)
    updates: list[tuple[int, list[int], RichUpdate | None]] = field(default_factory=list)
    scheduler: SchedulerFacts | None = None
    # Wall clock in seconds.
    received_time: float = field(default_factory=time.time)
    weight_version: str = ""  # name of the weights that computed it; empty: they have none

    def try_join(self, later: "Step") -> bool:
        """Merge the next step of the same engine into this one: append its tokens to those of each sequence; return True.

        Return False and change nothing if a sequence has updates in both steps that cannot be merged (see `stands_alone`), or
        if other weights computed the steps.
        """
        if later.weight_version != self.weight_version:
            return False
        places = {handle: place for place, (handle, _, _) in enumerate(self.updates)}
        shared = [update for update in later.updates if update[0] in places]
        for handle, ids, rich in shared:
            earlier = self.updates[places[handle]][2]
            if (rich is not None and rich.stands_alone) or (earlier is not None and earlier.stands_alone):
                return False
            if rich is not None and rich.finish_reason is not None and not ids:
                # A stop token has no text. Here the request stopped after its last token, which has text and would lose it.
                return False
        for handle, ids, rich in shared:
            place = places[handle]
            _, earlier_ids, earlier = self.updates[place]
            self.updates[place] = (handle, earlier_ids + ids, _joined(earlier, rich))
        self.updates += [update for update in later.updates if update[0] not in places]
        self.scheduler = later.scheduler or self.scheduler
        return True


def _joined(earlier: RichUpdate | None, later: RichUpdate | None) -> RichUpdate | None:
    if earlier is None or later is None:
        return earlier or later
    return replace(
        later,
        prompt_logprobs=earlier.prompt_logprobs or later.prompt_logprobs,
        prompt_scores=earlier.prompt_scores or later.prompt_scores,
        num_cached_tokens=later.num_cached_tokens if earlier.num_cached_tokens is None else earlier.num_cached_tokens,
        num_external_tokens=earlier.num_external_tokens or later.num_external_tokens,
        num_preemptions=earlier.num_preemptions + later.num_preemptions,
        queued_time_s=later.queued_time_s if earlier.queued_time_s is None else earlier.queued_time_s,
        prefill_time_s=later.prefill_time_s if earlier.prefill_time_s is None else earlier.prefill_time_s,
    )
