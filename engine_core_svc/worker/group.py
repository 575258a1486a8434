"""WorkerGroup: the interface of an engine core to its workers: one or many ranks that hold one model and answer each step once.

The engine brings a group up, opens a stream of plans to it, and opens another one after each loss. Plans and results are the
core's own values, so a group may also run in the same process without any messages. WorkerLink is the group over a carrier. A
rank that fails fails its group: the engine then recovers the group as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.core.pooling import PoolingFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.services.errors import TetradError
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The workers' description of themselves and their model; messages to and from them have at most max_message_bytes."""

    device: str
    dtype: str
    vocab_size: int
    max_position_embeddings: int
    version: str = ""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    weights_dtype: str = ""
    pooling: PoolingFacts | None = None  # None: the model generates
    takes_embeddings: bool = False  # in place of token ids
    hidden_size: int = 0
    verifies_drafts: bool = False

    def settings_for_model(self, settings: EngineCoreSettings) -> EngineCoreSettings:
        """Return the settings as the model can have them: an encoder computes a prompt in one step and caches nothing."""
        if self.pooling is None or self.pooling.is_causal:
            return settings
        return settings.model_copy(update={"enable_chunked_prefill": False, "enable_prefix_caching": False, "swap_space": 0})

    @property
    def answer_row_bytes(self) -> int:
        """Bytes of the answer for one token, in a pooling task of tokens; 0: the model does not pool."""
        pooling = self.pooling
        return 0 if pooling is None else _FLOAT32_BYTES * max(pooling.embedding_size, pooling.num_labels)


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a group is given up.

    Attributes:
        error: for people, and for requests that cannot go on.
        is_crash: whether what ran may be to blame; None: only if another instance answers next time.
    """

    error: TetradError
    is_crash: bool | None


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of an engine.

    Attributes:
        is_paused: new requests wait.
        finishes_running: those that run may finish; else they are frozen.
    """

    is_paused: bool = False
    finishes_running: bool = False


class PlanStream(Protocol):
    """Plans out, results in, in the same order. Nothing here waits for a step.

    Attributes:
        lost: why the group is given up; None while it is not. The stream is of no more use then.
        instance_id: which processes answer; empty: they do not say.
        shares_params: whether they read parameters that several requests of a plan share.
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
        """Plans whose result was not taken yet."""

    def dispatch(self, plan: SchedulerOutput) -> None:
        """Hand a plan to every rank."""

    def take_results(self) -> list[ModelRunnerOutput]:
        """Return the results that arrived since the last call, one a step, whatever the number of ranks."""

    async def close(self) -> None:
        """End the stream; the workers then forget every request."""


class WorkerGroup(Protocol):
    """The workers of one engine core.

    Attributes:
        epoch: of this engine core; workers serve the largest one.
        pause: of the operator's order that the workers keep for the next engine core; None: no worker has been met yet.
    """

    epoch: int

    @property
    def pause(self) -> Pause | None:
        """See the class."""

    @property
    def num_ranks(self) -> int:
        """Workers of the group."""

    @property
    def computes_on_cores(self) -> bool:
        """Whether the workers have no device of their own, and compute on this machine's cores."""

    async def bring_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Make every rank ready for plans; the layout is the same each time.

        Raises Unavailable if a rank is away; a permanent error if the group can never serve the model.
        """

    def require_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Return the layout and facts of the first bring_up, which must have succeeded."""

    async def connect(self, on_change: Callable[[], None]) -> PlanStream:
        """Return an open stream to a group that was brought up for it.

        Args:
            on_change: called on the event loop when a result arrives or the stream is lost.
        """

    async def sleep(self, level: int) -> None:
        """Let every rank give its memory up; no stream may be open. Unavailable if one is away."""

    async def wake_up(self, tags: Sequence[str]) -> bool:
        """Undo `sleep` for some parts (none: all); return whether something still sleeps."""

    async def keep_pause(self, pause: Pause) -> None:
        """Make the workers keep this pause."""

    async def start_profile(self, prefix: str) -> None:
        """Record every rank."""

    async def stop_profile(self) -> list[str]:
        """Return the path of each rank's trace, as its own process sees it. NotFound if nothing is recorded."""

    async def collective_rpc(self, method: str, args: str, kwargs: str, *, timeout_s: float | None) -> list[str]:
        """Call a registered method on every rank; return their results, in the order of the ranks.

        Args:
            method: its name.
            args, kwargs: JSON.
            timeout_s: longest wait; None: as long as it takes.
        """

    async def load_lora(self, adapter: Adapter) -> bytes:
        """Let every rank load an adapter, beside its steps; return the hash of its files. Raises why one of them cannot."""

    async def unload_lora(self, adapter: Adapter) -> None:
        """Let every rank forget an adapter, behind the plans that it has been given."""

    async def close(self) -> None:
        """Let the workers go."""
