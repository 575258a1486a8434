"""Request: one sequence in the engine core, and the states that it may have.

Owned by the scheduler; the KV cache manager keeps the block table and the block hashes here. Knows nothing of sessions'
streams, of protobuf, or of devices.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.draft_metrics import DraftMetrics
from tetrad.engine_core_svc.core.kv_transfer import NO_TRANSFER, HandOver, KvTransfer
from tetrad.engine_core_svc.core.message_sizes import NO_SIZES, MessageSizes
from tetrad.engine_core_svc.core.payload import NO_PAYLOAD, WorkerPayload
from tetrad.services.request_context import NO_CONTEXT, RequestContext


class RequestStatus(enum.Enum):
    """The state of a request. Unfinished states come first; TRANSITIONS has the legal transitions."""

    WAITING_FOR_GRAMMAR = enum.auto()
    WAITING_FOR_LORA = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()
    FINISHED_REPETITION = enum.auto()

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for any reason."""
        return self in _FINISHED


_FINISHED = frozenset(status for status in RequestStatus if status.name.startswith("FINISHED"))

TRANSITIONS: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING_FOR_GRAMMAR: _FINISHED | {RequestStatus.WAITING},
    RequestStatus.WAITING_FOR_LORA: _FINISHED | {RequestStatus.WAITING},
    RequestStatus.WAITING_FOR_REMOTE_KVS: _FINISHED | {RequestStatus.WAITING},
    RequestStatus.WAITING: _FINISHED
    | {RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.WAITING_FOR_LORA},
    RequestStatus.RUNNING: _FINISHED | {RequestStatus.PREEMPTED},
    RequestStatus.PREEMPTED: _FINISHED
    | {RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.WAITING_FOR_LORA},
}


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """Ends a request whose output ends in `min_count` copies of a pattern of min_pattern_size..max_pattern_size tokens."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@dataclass(frozen=True, slots=True)
class StopRules:
    """The conditions that end a request.

    Attributes:
        max_tokens: maximum number of output tokens; None: up to the context length.
        min_tokens: number of output tokens before which the worker masks EOS and stop ids, and repetition is not checked.
        eos_token_id: token that ends the output; None: the model has none, or it is ignored.
        stop_token_ids: further token ids that end the output.
        repetition: rule that ends a repeating output; None: off.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    eos_token_id: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    repetition: RepetitionRule | None = None


@dataclass(frozen=True, slots=True)
class LogprobWidths:
    """Candidates per position of the requested log-probabilities, the token itself included. 0: not requested.

    Attributes:
        sampled: number of candidates of each output token.
        prompt: number of candidates of each prompt token.
        scored: number of score ids of each row of the prompt's scores.
        scored_from: position of the token that the first row follows.
    """

    sampled: int = 0
    prompt: int = 0
    scored: int = 0
    scored_from: int = 0


NO_LOGPROBS = LogprobWidths()


CallId = tuple[int, int]
"""Identifies a client's call: its session, and the call's number in that session."""
ALONE: CallId = (-1, -1)
"""Default of a request that is a call of its own; the request then gets a unique id."""


class Purpose(enum.IntEnum):
    """The purpose of a request: to generate tokens, or to pool its prompt to a vector. Set at admission."""

    GENERATION = 0
    POOLING = 1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate or to pool.

    Attributes:
        key: the engine core's own number for it; the workers use it, too.
        request_id: the client's id, unique within its session.
        session_key: key of its session; 0 in tests.
        handle: the client's number for it, used in outputs.
        token_ids: token ids of prompt and output.
        num_prompt_tokens: number of prompt tokens in token_ids.
        max_total_tokens: maximum number of tokens of prompt and output (max_tokens and the model's context); for pooling, one
            more than the prompt has.
        purpose: generation or pooling.
        priority: larger is more urgent.
        sequence_number: order of arrival at this engine; it decides between equal requests.
        call: the client's call, whose sequences take turns with those of other calls; default: a call of its own.
        place: its place among requests of equal priority; None: none yet (scheduler/policy.py).
        num_computed_tokens: number of tokens whose KV is computed or planned.
        may_load: whether blocks may be fetched from elsewhere: no transfer for it has failed.
        transfer: what it asks of KV transfers.
        hand_over: where the blocks of its prompt are kept after its end; None: nowhere.
        logprobs: the log-probabilities that each result must have.
        adapter: the version of the adapter that it runs with; None: the base model.
        is_held: whether it must not be planned now: it waits for tokens in flight and the masks after them (see Grammars).
        num_placeholders: number of tokens that plans in flight sample: the worker has them, the engine core not yet. Drafts
            count until a result reports how many were accepted.
        draft_ids: tokens proposed to follow token_ids, which the next step verifies (scheduler/drafting.py).
        predicted_ids: tokens that the client expects as the output; empty: none.
        draft_state: state that the proposer of drafts keeps for it; None: none.
        draft_metrics: counts of its drafts; None: single requests are not measured.
        ignored_until: id of the last step whose result is ignored, since the request read unwritten blocks; -1: none.
        last_step_id: id of the last plan that names this request's blocks; -1: none.
        block_tables: one block table per KV group, of equal length; empty while it holds no blocks.
        block_hashes: hashes of its full blocks that were computed so far.
        num_cached_blocks: number of its blocks that are registered in the prefix cache, in every group.
        num_cached_tokens: number of prompt tokens found in the prefix cache when it first ran; -1: it has not run yet.
        sizes: bytes that it adds to the messages of a step.
        queued_at, scheduled_at, first_token_at: time of the first such event, in monotonic seconds; 0: none yet.
        context: context of the client's request.
    """

    key: int
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    stop: StopRules = StopRules()
    purpose: Purpose = Purpose.GENERATION
    session_key: int = 0
    handle: int = 0
    priority: int = 0
    arrival_time: float = 0.0
    sequence_number: int = 0
    call: CallId = ALONE
    place: float | None = None
    cache_salt: str = ""
    skip_reading_prefix_cache: bool = False
    may_load: bool = True
    logprobs: LogprobWidths = NO_LOGPROBS
    payload: WorkerPayload = NO_PAYLOAD
    transfer: KvTransfer = NO_TRANSFER
    hand_over: HandOver | None = None
    adapter: Adapter | None = None
    sizes: MessageSizes = NO_SIZES
    status: RequestStatus = RequestStatus.WAITING
    is_held: bool = False
    num_computed_tokens: int = 0
    num_placeholders: int = 0
    draft_ids: Sequence[int] = ()
    predicted_ids: Sequence[int] = ()
    draft_state: object = None
    draft_metrics: DraftMetrics | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = -1
    num_fetched_tokens: int = 0
    ignored_until: int = -1
    last_step_id: int = -1
    first_output_sent: bool = False
    block_tables: list[list[int]] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_cached_blocks: int = 0
    queued_at: float = 0.0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    context: RequestContext = NO_CONTEXT

    def __post_init__(self) -> None:
        if self.call == ALONE:
            self.call = (-1, self.key)

    @property
    def num_tokens(self) -> int:
        """The number of known tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """The number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def awaits_media(self) -> bool:
        """Whether media follow the computed tokens: they may have to be encoded before it goes on."""
        media = self.payload.media
        return bool(media) and self.num_computed_tokens < media[-1].end

    @property
    def prompt_logprob_bytes(self) -> int:
        """The bytes of its prompt's log-probabilities, if requested; the first token has none, since no token precedes it."""
        return self.sizes.prompt_logprob_bytes * (self.num_prompt_tokens - 1)

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status in _FINISHED

    def forget_source(self) -> None:
        """Read no blocks of its prompt from another engine core any more."""
        self.transfer = replace(self.transfer, source=None)

    def samples_at(self, num_computed_tokens: int) -> bool:
        """Return whether the step that computes up to `num_computed_tokens` tokens samples a token for it."""
        return num_computed_tokens == len(self.token_ids) + self.num_placeholders

    def ignores(self, step_id: int) -> bool:
        """Return whether a step's result must be ignored for this request."""
        return step_id <= self.ignored_until

    def move_to(self, status: RequestStatus) -> None:
        """Change the state. Raises ValueError for a transition that TRANSITIONS does not have, which is a bug of the caller."""
        if status not in TRANSITIONS.get(self.status, frozenset()):
            raise ValueError(f"request {self.request_id}: {self.status.name} -> {status.name} is not a legal move")
        self.status = status

    def restart(self) -> None:
        """Forget all computed tokens: the blocks are freed, the token ids stay."""
        self.num_computed_tokens = 0
        self.num_cached_blocks = 0
        self.block_tables = []
        self.draft_ids = ()
