"""Plans, results and outputs: the plain values that pass between scheduler, executor and sessions.

SchedulerOutput and ModelRunnerOutput carry vLLM's names and meaning; a resumed request is a new request to the worker.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.engine_core_svc.core.request import NO_LOGPROBS, LogprobWidths, Request, RequestStatus
from tetrad.services.columns import U32_BYTES
from tetrad.services.errors import TetradError


class FinishReason(enum.IntEnum):
    """Why a request ended; the numbers are the contract's."""

    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    REPETITION = 5


FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request that the worker does not know: its state at this moment."""

    key: int
    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int]
    payload: Any
    logprobs: LogprobWidths = NO_LOGPROBS


@dataclass(slots=True)
class CachedRequestData:
    """Columns over requests that the worker knows; new_block_ids holds num_new_blocks[i] ids for each request i in turn."""

    keys: list[int] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_new_blocks: list[int] = field(default_factory=list)
    new_block_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Allowed tokens of the constrained requests that sample in a step.

    Attributes:
        keys: one per row.
        masks: u32 column [rows * num_words]: bit i of word w allows token 32 w + i.
        num_words: per row.
    """

    keys: list[int]
    masks: bytes
    num_words: int


@dataclass(slots=True)
class Swaps:
    """Copies of one plan: (block of the device, host block) out, (host block, block of the device) in."""

    out: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class SchedulerOutput:
    """One step's plan."""

    step_id: int
    new_requests: list[NewRequestData] = field(default_factory=list)
    cached_requests: CachedRequestData = field(default_factory=CachedRequestData)
    removed_keys: list[int] = field(default_factory=list)
    sampling_keys: list[int] = field(default_factory=list)
    """Requests whose last known token is computed: each of them brings a token, or fails."""
    total_num_scheduled_tokens: int = 0
    grammar_masks: GrammarMasks | None = None
    swaps: Swaps = field(default_factory=Swaps)

    @property
    def num_requests(self) -> int:
        """Requests that compute something in this step."""
        return len(self.new_requests) + len(self.cached_requests.keys)

    def num_scheduled_tokens(self) -> dict[int, int]:
        """Return key -> tokens, for tests and logs."""
        scheduled = {new.key: new.num_scheduled_tokens for new in self.new_requests}
        scheduled.update(zip(self.cached_requests.keys, self.cached_requests.num_scheduled_tokens, strict=True))
        return scheduled


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Columns of log-probabilities as they travel: `width` candidates per position, column 0 the sampled token."""

    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    num_positions: int
    width: int

    def has_shape(self, num_positions: int, width: int) -> bool:
        """Return whether the columns are those of so many positions, of so many candidates each."""
        size = U32_BYTES * num_positions * width
        return (
            (self.num_positions, self.width) == (num_positions, width)
            and len(self.token_ids) == len(self.logprobs) == size
            and len(self.ranks) == U32_BYTES * num_positions
        )


@dataclass(slots=True)
class ModelRunnerOutput:
    """One step's result: the tokens that were sampled, by request key."""

    step_id: int
    keys: list[int] = field(default_factory=list)
    token_ids: list[Sequence[int]] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    failures: dict[int, TetradError] = field(default_factory=dict)
    compute_s: float = 0.0
    """Seconds on the device; 0: not told."""

    def drop(self, dropped: Collection[int]) -> None:
        """Take everything of these requests out of the result, except their failures."""
        kept = [index for index, key in enumerate(self.keys) if key not in dropped]
        self.keys, self.token_ids = [self.keys[index] for index in kept], [self.token_ids[index] for index in kept]
        for key in dropped:
            self.logprobs.pop(key, None)
            self.prompt_logprobs.pop(key, None)


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """How a prompt was computed, in tokens."""

    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(slots=True)
class EngineCoreOutput:
    """What one step brought for one request."""

    request: Request
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    prefill_stats: PrefillStats | None = None
    error: TetradError | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is tokens and nothing else, which is what most of them are."""
        return (
            self.finish_reason is None and self.prefill_stats is None and self.logprobs is None and self.prompt_logprobs is None
        )
