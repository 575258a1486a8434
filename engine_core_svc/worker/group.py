"""WorkerGroup: the interface of an engine core to its workers: one or many ranks that hold one model and answer each step once.

The engine prepares a group (`bring_up`), opens a stream of plans to it, and opens another one after each loss. Plans and
results are the core's own values, so a group may also run in the same process without any messages. WorkerLink is the group
over a carrier. If one rank fails, its group fails: the engine then recovers the group as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.media import EncoderEvents, EncoderInput, MediaSpan, Modality
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput, TransferEvents
from tetrad.engine_core_svc.core.pooling import PoolingFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.services.errors import TetradError
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The workers' description of themselves and of their model; messages to and from them have at most max_message_bytes."""

    device: str
    dtype: str
    vocab_size: int
    max_position_embeddings: int
    version: str = ""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    weights_dtype: str = ""
    pooling: PoolingFacts | None = None  # None: the model generates
    takes_embeddings: bool = False  # whether prompts may have embeddings in place of token ids
    hidden_size: int = 0
    verifies_drafts: bool = False
    scores_prompts: bool = False  # whether given ids may be scored at the positions of a prompt
    times_tokens: bool = False  # whether the worker is of a release that says when tokens are said
    keeps_states: bool = False  # whether drafts may be planned with a model that has states
    logits_processors: tuple[str, ...] = ()  # names of their custom logits processors
    modalities: tuple[Modality, ...] = ()  # media that prompts may have
    is_encoder_decoder: bool = False  # each request has one item, to whose encoding all tokens attend
    supports_transcription: bool = False
    encoded_position_bytes: int = 0  # bytes of an embedding in the encoder cache, if is_encoder_decoder

    def settings_for_model(self, settings: EngineCoreSettings) -> EngineCoreSettings:
        """Return the settings adapted to the model: an encoder computes a prompt in one step and caches nothing."""
        if self.pooling is None or self.pooling.is_causal:
            return settings
        whole = {"enable_chunked_prefill": False, "long_prefill_token_threshold": 0}
        return settings.model_copy(update={**whole, "enable_prefix_caching": False, "swap_space": 0})

    def largest_item(self, max_model_len: int) -> int:
        """Return the maximum number of embeddings of a media item in a prompt of this maximum length; 0: there are no media."""
        largest = max((modality.max_embeds for modality in self.modalities), default=0)
        return largest if self.is_encoder_decoder else min(largest, max_model_len)

    def encoder_cache_size(self, layout: KVCacheLayout) -> int:
        """Return the room of the encoder cache in embeddings: those of a step or of the largest item, as in vLLM; 0: none.

        That of a model with an encoder and a decoder is planned with its blocks.
        """
        largest = self.largest_item(layout.max_model_len)
        if self.is_encoder_decoder:
            return layout.num_encoded_items * largest
        return max(layout.max_num_batched_tokens, largest) if largest else 0

    @property
    def answer_row_bytes(self) -> int:
        """The bytes of the answer for one token, in a task that pools single tokens; 0: the model does not pool."""
        pooling = self.pooling
        return 0 if pooling is None else _FLOAT32_BYTES * max(pooling.embedding_size, pooling.num_labels)


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a group.

    Attributes:
        error: the reason, for people and for requests that cannot continue.
        is_crash: whether a running request may have caused it; None: only if another instance answers next time.
        is_elsewhere: whether a worker of another engine, which has experts of the model, was lost; a request of either engine
            may have caused it.
    """

    error: TetradError
    is_crash: bool | None
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of an engine.

    Attributes:
        is_paused: whether new requests are held.
        finishes_running: whether running requests may finish; otherwise they are held, too.
    """

    is_paused: bool = False
    finishes_running: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of the workers.

    Attributes:
        path: where those of the last update are; empty: the model's own.
        version: their name; empty: they have none.
    """

    path: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Weights of an update that the ranks have checked.

    Attributes:
        path: the directory or .gguf file, as the workers see it.
        update_id: identifies the update.
        files_digests: hash of the files, by rank.
    """

    path: str
    update_id: str
    files_digests: tuple[str, ...]


class PlanStream(Protocol):
    """Sends plans to a group and receives their results, in the same order. No method waits for a step.

    Attributes:
        lost: the loss of the group; None: it is connected. A lost stream cannot be used any more.
        instance_id: identifies the workers' processes; empty: unknown.
        shares_params: whether the workers read parameters that several requests of a plan share.
        verifies_drafts: whether plans may have draft tokens.
    """

    lost: Loss | None
    instance_id: str
    shares_params: bool
    verifies_drafts: bool

    @property
    def has_room(self) -> bool:
        """Whether another plan may be dispatched."""

    @property
    def num_in_flight(self) -> int:
        """The number of plans whose results were not taken yet."""

    def dispatch(self, plan: SchedulerOutput) -> None:
        """Send a plan to the group."""

    def take_results(self) -> list[ModelRunnerOutput]:
        """Return the results that have arrived since the last call, one per step for any number of ranks."""

    def encode(self, items: Sequence[tuple[MediaSpan, EncoderInput]]) -> None:
        """Let the group encode media items, in this order, beside its steps."""

    def take_encoder_events(self) -> EncoderEvents | None:
        """Return the items whose encoding has ended since the last call, once for any number of ranks; None: there are none."""

    def take_transfer_events(self) -> list[TransferEvents]:
        """Return the ends of transfers of KV blocks that have arrived since the last call."""

    async def close(self) -> None:
        """End the stream; the workers then forget every request."""


class WorkerGroup(Protocol):
    """The workers of one engine core.

    Attributes:
        epoch: epoch of this engine core; workers serve the engine core with the largest one.
        pause: the pause that the workers store for the next engine core; None: no worker was connected yet.
        weights: the weights that the workers have, or get when they are connected again.
    """

    epoch: int

    @property
    def weights(self) -> Weights:
        """See the class."""

    @property
    def pause(self) -> Pause | None:
        """See the class."""

    @property
    def num_ranks(self) -> int:
        """The number of workers of the group."""

    @property
    def computes_on_cores(self) -> bool:
        """Whether the workers have no device of their own, and compute on this machine's cores."""

    async def bring_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Make every rank ready for plans; the layout is the same each time.

        Raises Unavailable if a rank cannot be reached; a permanent error if the group can never serve the model.
        """

    def require_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Return the layout and facts of the first bring_up, which must have succeeded."""

    async def connect(self, on_change: Callable[[], None]) -> PlanStream:
        """Prepare the group for plans if necessary, and return an open stream to it.

        Args:
            on_change: called on the event loop when a result arrives or the stream is lost.
        """

    async def sleep(self, level: int) -> None:
        """Let every rank release its memory; no stream may be open. Raises Unavailable if a rank cannot be reached."""

    async def wake_up(self, tags: Sequence[str]) -> bool:
        """Undo `sleep` for some parts (empty: all); return whether any part still sleeps."""

    async def keep_pause(self, pause: Pause) -> None:
        """Make the workers store this pause."""

    async def check_weights(self, path: str) -> NewWeights:
        """Let every rank compare the files of other weights with the model's, beside its steps.

        Raises NotFound or ModelError if they do not fit.
        """

    async def replace_weights(self, update: NewWeights, version: str) -> None:
        """Let every rank load other weights; no stream may be open. After an error, every rank has those before.

        Raises Unavailable if a rank is lost, ModelError if one cannot load them.
        """

    async def name_weights(self, version: str) -> None:
        """Give the present weights another name."""

    async def start_profile(self, prefix: str, delay: int = 0, most: int = 0) -> None:
        """Start a profile of every rank. The first one waits for `delay` steps, and records `most`; 0: all until the end."""

    async def stop_profile(self) -> list[str]:
        """Return the path of each rank's trace, on the rank's own machine, without ranks that were replaced meanwhile.

        Raises NotFound if no rank records.
        """

    async def collective_rpc(self, method: str, args: str, kwargs: str, *, timeout_s: float | None) -> list[str]:
        """Call a registered method on every rank; return their results, in the order of the ranks.

        Args:
            method: name of the method.
            args, kwargs: its arguments as JSON.
            timeout_s: maximum wait in seconds; None: no limit.
        """

    async def load_lora(self, adapter: Adapter) -> bytes:
        """Let every rank load an adapter, beside its steps; return the hash of its files.

        Raises the first error of a rank; Unavailable if the group is lost or was replaced.
        """

    async def unload_lora(self, adapter: Adapter) -> None:
        """Let every rank forget an adapter, after the plans that were sent before."""

    async def close(self) -> None:
        """Close the connections to the workers."""
