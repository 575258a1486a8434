"""Request: one sequence on its way through the engine core, and the states it may be in.

Owned by the scheduler; the KV cache manager keeps the block table and the block hashes here. Knows nothing of sessions'
streams, of protobuf, or of devices.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.message_sizes import NO_SIZES, MessageSizes
from tetrad.engine_core_svc.core.payload import NO_PAYLOAD, WorkerPayload
from tetrad.services.request_context import NO_CONTEXT, RequestContext


class RequestStatus(enum.Enum):
    """Where a request stands. Unfinished states first; see TRANSITIONS for the legal moves."""

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
        """Whether the request has ended, in whatever way."""
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
        max_tokens: most output tokens; None: up to the context length.
        min_tokens: the worker masks EOS and stop ids until then; repetition is not looked for before.
        eos_token_id: None: the model has none, or it is ignored.
        stop_token_ids: further ids that end the output.
        repetition: None: off.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    eos_token_id: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    repetition: RepetitionRule | None = None


@dataclass(frozen=True, slots=True)
class LogprobWidths:
    """Candidates per position of the log-probabilities that a request asks for; the token itself is one. 0: it asks for none.

    Attributes:
        sampled: of each output token.
        prompt: of each prompt token.
    """

    sampled: int = 0
    prompt: int = 0


NO_LOGPROBS = LogprobWidths()


CallId = tuple[int, int]
"""Names a client's call: its session, and the call's number there."""
ALONE: CallId = (-1, -1)
"""Of a request that is a call of its own; each gets a name that no other has."""


class Purpose(enum.IntEnum):
    """What a request is for: tokens, or one vector of its prompt. Chosen when it is admitted."""

    GENERATION = 0
    POOLING = 1


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate.

    Attributes:
        key: the engine core's own number for it; names it to the workers.
        request_id: the client's id, unique within its session.
        session_key: whose request it is; 0 in tests.
        handle: the client's number for it, used in outputs.
        token_ids: prompt and output; grows by append_token only.
        num_prompt_tokens: how many of token_ids are prompt.
        max_total_tokens: prompt and output may not grow longer (max_tokens and the model's context); for pooling, one more than
            the prompt has.
        purpose: what results bring it.
        priority: larger is more urgent.
        sequence_number: order of arrival at this engine; ties are broken by it.
        call: the call whose sequences take turns with those of others; one of its own, if it is not given.
        place: orders it among requests of one priority; None: its turn has not come (scheduler/policy.py).
        num_computed_tokens: tokens whose KV is computed or planned.
        may_load: blocks may be fetched from elsewhere; no transfer for it has failed.
        logprobs: what each result is to bring besides tokens.
        adapter: the version of the adapter that it runs with; None: the base model.
        is_held: it must not be planned now: a constraint waits for the token that comes before (see Grammars).
        num_placeholders: tokens that plans in flight bring: they exist on the worker, not here yet. Drafts count until a result
            says how many of them were accepted.
        draft_ids: tokens that are proposed to follow token_ids, to be verified by the next step (scheduler/drafting.py).
        predicted_ids: tokens that the client expects as the output; empty: none.
        draft_state: what the proposer of drafts keeps of it; None: nothing yet.
        ignored_until: results of steps up to this one do not count, as the request read what was never written; -1: all do.
        last_step_id: the last plan that names this request's blocks; -1: none.
        block_tables: one per KV group, of equal length; none while it holds no blocks.
        block_hashes: hashes of its full blocks, as far as computed.
        num_cached_blocks: how many of its blocks are registered in the prefix cache, in every group.
        sizes: what it adds to the messages of a step.
        queued_at, scheduled_at, first_token_at: when that was, first, by the monotonic clock; 0: it was not yet.
        context: the client's request that it belongs to.
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
    adapter: Adapter | None = None
    sizes: MessageSizes = NO_SIZES
    status: RequestStatus = RequestStatus.WAITING
    is_held: bool = False
    num_computed_tokens: int = 0
    num_placeholders: int = 0
    draft_ids: Sequence[int] = ()
    predicted_ids: Sequence[int] = ()
    draft_state: object = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0
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
        """Tokens known here: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_logprob_bytes(self) -> int:
        """Bytes of its prompt's log-probabilities, if it asks for them; nothing precedes the first token."""
        return self.sizes.prompt_logprob_bytes * (self.num_prompt_tokens - 1)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.status in _FINISHED

    def samples_at(self, num_computed_tokens: int) -> bool:
        """Whether it gets a token from the step that brings it to so many computed tokens."""
        return num_computed_tokens == self.num_tokens + self.num_placeholders

    def ignores(self, step_id: int) -> bool:
        """Whether a step's result says nothing about this request."""
        return step_id <= self.ignored_until

    def move_to(self, status: RequestStatus) -> None:
        """Change the state; ValueError for a move that TRANSITIONS does not have: a bug of ours."""
        if status not in TRANSITIONS.get(self.status, frozenset()):
            raise ValueError(f"request {self.request_id}: {self.status.name} -> {status.name} is not a legal move")
        self.status = status

    def restart(self) -> None:
        """Forget what was computed: blocks are gone, tokens stay."""
        self.num_computed_tokens = 0
        self.num_cached_blocks = 0
        self.block_tables = []
        self.draft_ids = ()
