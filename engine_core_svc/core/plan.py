"""Plans, results and outputs: the plain values that pass between scheduler, executor and sessions.

SchedulerOutput and ModelRunnerOutput carry vLLM's names and meaning; a resumed request is a new request to the worker.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.kv_transfer import TransferOrders
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.request import NO_LOGPROBS, LogprobWidths, Request, RequestStatus
from tetrad.services.errors import TetradError
from tetrad.services.rpc.columns import U32_BYTES


class FinishReason(enum.IntEnum):
    """The reason why a request ended; the numbers are those of the contract."""

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
    """A request that the worker does not know: its present state, with one block table per KV group."""

    key: int
    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_tables: Sequence[Sequence[int]]
    payload: WorkerPayload
    logprobs: LogprobWidths = NO_LOGPROBS
    pools: bool = False
    adapter: Adapter | None = None


@dataclass(slots=True)
class CachedRequestData:
    """Columns over requests that the worker knows; new_blocks[i] has the new blocks of each KV group's table of request i."""

    keys: list[int] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    new_blocks: list[Sequence[Sequence[int]]] = field(default_factory=list)

    def extend(self, row: int, num_tokens: int, new_blocks: Sequence[Sequence[int]]) -> None:
        """Add tokens to a row, and the blocks that they need."""
        self.num_scheduled_tokens[row] += num_tokens
        self.new_blocks[row] = [[*blocks, *more] for blocks, more in zip(self.new_blocks[row], new_blocks, strict=True)]


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Allowed tokens of the constrained requests that sample in a step.

    Attributes:
        keys: one per row. A request with k drafts has k + 1 consecutive rows: for each draft, and for the token after them.
        masks: u32 column [rows * num_words]: bit i of word w allows token 32 w + i.
        num_words: number of words per row.
    """

    keys: list[int]
    masks: bytes
    num_words: int


@dataclass(slots=True)
class Swaps:
    """Copies of one plan: (device block, host block) in `out`, (host block, device block) in `back`."""

    out: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step."""

    step_id: int
    new_requests: list[NewRequestData] = field(default_factory=list)
    cached_requests: CachedRequestData = field(default_factory=CachedRequestData)
    removed_keys: list[int] = field(default_factory=list)
    sampling_keys: list[int] = field(default_factory=list)
    """Requests whose last known token is computed: each gets one token, and one more for each accepted draft, or fails."""
    draft_tokens: dict[int, Sequence[int]] = field(default_factory=dict)
    """Key -> tokens to verify: they follow the request's last known token, and are the last of its scheduled tokens."""
    num_spec_tokens: int = 0
    """Maximum number of drafts that the worker proposes for each request after this step."""
    total_num_scheduled_tokens: int = 0
    grammar_masks: GrammarMasks | None = None
    swaps: Swaps = field(default_factory=Swaps)
    transfers: TransferOrders | None = None
    """Transfers of blocks between engine cores that begin with this plan."""
    freed_encoder_hashes: Sequence[str] = ()
    """Identifiers of the entries that the worker drops from its encoder cache before the step."""

    @property
    def num_requests(self) -> int:
        """The number of requests that compute tokens in this step."""
        return len(self.new_requests) + len(self.cached_requests.keys)

    def keys(self) -> set[int]:
        """Return the keys of the requests that compute tokens in this step."""
        return {*self.cached_requests.keys, *(new.key for new in self.new_requests)}

    def num_scheduled_tokens(self) -> dict[int, int]:
        """Return the number of scheduled tokens by request key, for tests and logs."""
        scheduled = {new.key: new.num_scheduled_tokens for new in self.new_requests}
        scheduled.update(zip(self.cached_requests.keys, self.cached_requests.num_scheduled_tokens, strict=True))
        return scheduled


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Columns of log-probabilities, as in the messages: `width` candidates per position, column 0 is the sampled token."""

    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    num_positions: int
    width: int

    def has_shape(self, num_positions: int, width: int) -> bool:
        """Return whether the columns have `num_positions` positions of `width` candidates each."""
        size = U32_BYTES * num_positions * width
        return (
            (self.num_positions, self.width) == (num_positions, width)
            and len(self.token_ids) == len(self.logprobs) == size
            and len(self.ranks) == U32_BYTES * num_positions
        )

    def first(self, num_positions: int) -> "Logprobs":
        """Return the log-probabilities of the first positions."""
        size = U32_BYTES * num_positions
        rows = size * self.width
        return Logprobs(self.token_ids[:rows], self.logprobs[:rows], self.ranks[:size], num_positions, self.width)


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of given ids at positions of a prompt, as in the messages: an f32 column [num_rows * width]."""

    scores: bytes
    num_rows: int
    width: int

    def has_shape(self, num_rows: int, width: int) -> bool:
        """Return whether there are `num_rows` rows of `width` scores each."""
        return (self.num_rows, self.width, len(self.scores)) == (num_rows, width, U32_BYTES * num_rows * width)


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """The values computed from the hidden states of a prompt: an embedding, probabilities, or one row per token.

    Attributes:
        dtype: type of the elements, such as "float32".
        shape: size of each dimension.
        data: the elements, row-major and little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(slots=True)
class ModelRunnerOutput:
    """The result of one step: the sampled tokens and the answers of pooling requests, by request key.

    The tokens of a request with drafts are its accepted drafts, which equal the tokens sampled at their positions, and the
    token sampled after them.
    """

    step_id: int
    keys: list[int] = field(default_factory=list)
    token_ids: list[Sequence[int]] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)
    prompt_scores: dict[int, PromptScores] = field(default_factory=dict)
    failures: dict[int, TetradError] = field(default_factory=dict)
    draft_tokens: dict[int, Sequence[int]] = field(default_factory=dict)
    """Key -> tokens that the worker proposes to follow the tokens of this result."""
    pooling_outputs: dict[int, PoolingOutput] = field(default_factory=dict)
    """Key -> output of a pooling request, which has no tokens."""
    compute_s: float = 0.0
    """Seconds of computation on the device; 0: not reported."""
    draft_s: float = 0.0
    """The part of `compute_s` in which a draft model or a draft head computed."""

    def drop(self, dropped: Collection[int]) -> None:
        """Remove everything of these requests from the result, except their failures."""
        kept = [index for index, key in enumerate(self.keys) if key not in dropped]
        self.keys, self.token_ids = [self.keys[index] for index in kept], [self.token_ids[index] for index in kept]
        for key in dropped:
            self.logprobs.pop(key, None)
            self.prompt_logprobs.pop(key, None)
            self.prompt_scores.pop(key, None)
            self.pooling_outputs.pop(key, None)


@dataclass(frozen=True, slots=True)
class TransferEvents:
    """Transfers of KV blocks that have ended, by the keys of their requests.

    Attributes:
        received: transfers whose blocks are written.
        failed: transfers whose blocks have no valid content.
        sent: ended requests whose kept blocks have been read, or whose time to be read is over.
        num_expired: number of `sent` whose time was over.
        bytes_moved: bytes of the blocks that have been read or written.
        seconds: duration of the transfers to this engine core.
    """

    received: Sequence[int] = ()
    failed: Sequence[int] = ()
    sent: Sequence[int] = ()
    num_expired: int = 0
    bytes_moved: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """Token counts of a prompt: all, those found in the prefix cache, and those of them that another engine core computed."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_external_cached_tokens: int = 0


@dataclass(slots=True)
class EngineCoreOutput:
    """The outputs of one step for one request."""

    request: Request
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    prompt_scores: PromptScores | None = None
    prefill_stats: PrefillStats | None = None
    pooling_output: PoolingOutput | None = None
    error: TetradError | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the output has only tokens, as most outputs do."""
        of_prompt = (self.prefill_stats, self.prompt_logprobs, self.prompt_scores)
        return self.finish_reason is None and self.logprobs is None and of_prompt == (None, None, None)
