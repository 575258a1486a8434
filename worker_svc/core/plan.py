"""Plan of one step, as plain values.

wire.py creates plans, and a runner executes them (result.py). Knows nothing of protobuf or of a device. Columns are numpy
arrays whose rows belong together; token ids and block ids fit into 32 bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tetrad.services.errors import TetradError
from tetrad.services.request_context import NO_CONTEXT, RequestContext
from tetrad.worker_svc.core.kv_transfer import KvTransferOrders
from tetrad.worker_svc.core.pooling import PoolingSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

GREEDY_BELOW = 1e-5
"""A request with a temperature below this value samples greedily."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreIds:
    """Ids whose log-probabilities a request returns at positions of its prompt; see PromptScoreIds in types.proto.

    Attributes:
        token_ids: [1, W], the ids of every row, or [rows, W]; -1: no id.
        start: position of the token whose hidden state predicts the first row's.
        num_positions: score when tokens are said, in the first so many positions of the encoder's output; None: their
            log-probabilities.
    """

    token_ids: Ints
    start: int
    num_positions: int | None = None

    def rows(self, num_prompt_tokens: int) -> Ints:
        """Return the ids of each row [rows, W] of a prompt of this length."""
        return np.broadcast_to(self.token_ids, (num_prompt_tokens - 1 - self.start, self.token_ids.shape[1]))


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """When timestamps are written: ids from `first_id` on, of which the first one is at most `max_initial` larger.

    A sentence that begins less than `written_before` behind `first_id` has text.
    """

    first_id: int
    max_initial: int
    written_before: int = 0


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """What a model of speech may write; see types.proto. None of `timestamps`: no rules for timestamps."""

    suppressed_ids: tuple[int, ...] = ()
    suppressed_first_ids: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """The sampling parameters of a request; protos/tetrad/v1/types.proto gives the ranges. The defaults have no effect."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # -1: the whole vocabulary
    num_prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprob_token_ids: tuple[int, ...] = ()  # tokens whose log-probabilities are returned, instead of the most likely ones
    thinking_token_budget: int | None = None
    thinking_start_ids: tuple[int, ...] = ()  # empty: the reasoning is open from the start
    thinking_end_ids: tuple[int, ...] = ()
    max_tokens: int | None = None  # for custom logits processors; the engine core ends the request
    ignore_eos: bool = False  # likewise
    extra_args: Mapping[str, Any] | None = None  # of custom logits processors
    score_ids: ScoreIds | None = None  # ids whose log-probabilities are returned at positions of the prompt
    speech_rules: SpeechRules | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the request takes the most likely token, without random noise; of several, the one with the least id."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """The part of a prompt that is given as embeddings: values [N, hidden] float32 at positions [N]."""

    positions: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows [N] of a step's tokens, ascending, and the embeddings [N, hidden] float32 that replace those of their token ids.

    Attributes:
        values: what enters the first layer in place of the embedding and its scaling.
        deep: [L, N, hidden] float32, added to the hidden states behind the first L layers (DeepStack); None: nothing.
    """

    rows: Ints
    values: Floats
    deep: Floats | None = None


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """The place of one image or video among the tokens of a prompt; its embeddings are in the encoder cache under `identifier`.

    An item that layers attend to (cross-attention) has no tokens: offset and length are 0.

    Attributes:
        identifier: hash of the image and of its preprocessing. Requests with the same image share its embeddings.
        modality: the kind of input, "image" or "video".
        offset: position of the span's first token.
        length: number of tokens of the span.
        is_embed: [length] bool, the tokens that take an embedding, in the order of the embeddings; None: all tokens.
        num_embeds: number of the item's embeddings.
        grid: time, height and width of the embeddings, of models with positions on three axes; None: plain positions.
        time_step: positions on the axis of time between the embeddings of two neighbouring times.
    """

    identifier: str
    modality: str
    offset: int
    length: int
    is_embed: npt.NDArray[np.bool_] | None
    num_embeds: int
    grid: tuple[int, int, int] | None = None
    time_step: float = 1.0


@dataclass(frozen=True, slots=True)
class EncoderItem:
    """An image to encode: the outputs of its preprocessing by name, without a batch axis, and its number of embeddings."""

    identifier: str
    modality: str
    tensors: Mapping[str, npt.NDArray[Any]]
    num_embeds: int


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the worker does not know yet, with all its tokens: new, resumed after a preemption, or recovered."""

    handle: int
    request_id: str
    token_ids: Ints
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Ints  # [G, N]: a row for each KV group; a block has the same place in all of them
    sampling: SamplingSpec
    eos_token_id: int | None = None
    context: RequestContext = NO_CONTEXT
    pooling: PoolingSpec | None = None
    """How to pool the prompt's hidden states; None: the request generates."""
    lora_id: int = 0
    """Id of the request's adapter; 0: the base model."""
    prompt_embeds: PromptEmbeds | None = None
    media: tuple[MediaSpan, ...] = ()
    """The images of the prompt, by ascending offset; they do not overlap."""
    refusal: TetradError | None = None
    """The error of a request that this worker cannot run; the runner returns it as the request's only answer."""


@dataclass(frozen=True, slots=True)
class CachedRequests:
    """Columns over the requests that the worker knows already and that run in this step."""

    handles: Ints
    num_scheduled_tokens: Ints
    num_computed_tokens: Ints
    num_new_blocks: Ints
    new_block_ids: Ints  # [G, N], request after request


@dataclass(frozen=True, slots=True)
class GrammarRows:
    """Masks of allowed tokens of constrained requests: bit i of word w allows token 32 w + i.

    A request with k drafts has k + 1 consecutive rows: one for each draft and one for the token after the drafts.
    """

    handles: Ints
    bitmask: npt.NDArray[np.uint32]  # [rows, words]

    def indices(self, handles: Ints, places: Ints) -> Ints:
        """Return the index of the mask row for each request [N] and its place among the drafts [N]; -1: no mask."""
        begins, lengths = self._requests()
        owners = self.handles[begins].tolist()
        rows = dict(zip(owners, zip(begins.tolist(), lengths.tolist(), strict=True), strict=True))
        found = np.array([rows.get(handle, (0, 0)) for handle in handles.tolist()], np.int64).reshape(-1, 2)
        return np.where(places < found[:, 1], found[:, 0] + places, -1)

    def of_place(self, place: int) -> "GrammarRows":
        """Return each request's row for this place: the place of a draft (0 is the first), or the one after the last draft."""
        begins, lengths = self._requests()
        rows = begins[lengths > place] + place
        return GrammarRows(self.handles[rows], self.bitmask[rows])

    def _requests(self) -> tuple[Ints, Ints]:
        """Return the index of each request's first row, and its number of rows."""
        begins = np.flatnonzero(np.diff(self.handles, prepend=-1))
        return begins, np.diff(begins, append=len(self.handles))


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Draft tokens to verify, one request after another: the last scheduled tokens of each request, after its known tokens."""

    handles: Ints
    num_tokens: Ints
    token_ids: Ints

    @classmethod
    def of(cls, drafts: Mapping[int, Sequence[int]]) -> "DraftTokens":
        """Return the columns of drafts that are given by request handle."""
        return cls(
            np.array([*drafts], np.int64),
            np.array([len(tokens) for tokens in drafts.values()], np.int64),
            np.array([token for tokens in drafts.values() for token in tokens], np.int64),
        )


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step, as a difference to the worker's known state."""

    step_id: int
    new_requests: Sequence[NewRequest]
    cached: CachedRequests
    removed_handles: Sequence[int] = ()
    grammar: GrammarRows | None = None
    drafts: DraftTokens | None = None
    num_spec_tokens: int = 0
    """Largest number of tokens that the worker's draft model proposes for each request after this step."""
    swap_out: tuple[Ints, Ints] | None = None  # blocks, host blocks
    swap_in: tuple[Ints, Ints] | None = None  # host blocks, blocks
    transfers: KvTransferOrders | None = None  # transfers of blocks between workers that begin with the plan
    freed_media: tuple[str, ...] = ()  # identifiers of media items to delete from the encoder cache before the step
