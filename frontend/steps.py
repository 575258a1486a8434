"""Steps: what one engine step brought, as the output processor sees it. Plain values between wire.py and the processor."""

from dataclasses import dataclass, field

from tetrad.frontend.outputs import FinishReasonName
from tetrad.services.errors import TetradError


@dataclass(slots=True)
class LogprobRows:
    """Candidates of consecutive positions, position after position; the first candidate is the actual token."""

    token_ids: list[int]  # [num_positions * width]
    logprobs: list[float]  # [num_positions * width]
    ranks: list[int]  # [num_positions]: of the first candidate
    width: int


@dataclass(slots=True)
class RichUpdate:
    """What came with a sequence's tokens besides them."""

    finish_reason: FinishReasonName | None = None
    stop_reason: int | str | None = None
    error: TetradError | None = None
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    # From queued to first scheduled, on the engine's clock.
    queued_time_s: float | None = None


@dataclass(slots=True)
class SchedulerFacts:
    """The scheduler after a step; counters run since the engine started."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(slots=True)
class Step:
    """One engine step's outputs for this frontend."""

    engine_index: int
    # (handle, new token ids, anything more)
    updates: list[tuple[int, list[int], RichUpdate | None]] = field(default_factory=list)
    scheduler: SchedulerFacts | None = None
