"""Device interface: loads a model, reports the memory for KV blocks, makes the runner of its steps.

Called by worker.py, always on the compute thread. Knows nothing of gRPC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.lora import LoraLimits, ModelLoras
from tetrad.worker_svc.core.plan import Ints, Runner
from tetrad.worker_svc.core.pooling import PoolingFacts
from tetrad.worker_svc.core.ranks import GroupPlace, Orders

DRAFT_METHODS = ("draft_model", "eagle3", "mtp")
"""How something on a worker may propose tokens; see LoadRequest."""

Progress = Callable[[int, int], None]
"""(done, in all)."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model, and how. Equal requests mean the same model."""

    model: str  # as asked for
    path: Path  # where it is: a directory or a .gguf file
    dtype: str = "auto"
    quantization: str = ""
    hf_overrides_json: str = ""
    random_weights: bool = False
    seed: int = 0
    loras: LoraLimits | None = None  # None: adapters are not wanted
    runner: str = "auto"  # "generate" or "pooling"
    convert: str = "auto"  # "none", "embed" or "classify"
    pooler_config_json: str = ""
    draft_method: str = ""  # "draft_model", "eagle3" or "mtp"; empty: nothing proposes tokens
    expert_parallel: bool = False  # shards have whole experts
    draft_path: Path | None = None  # of what proposes tokens; None: nothing, or a part of the model itself


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model."""

    model: str
    architecture: str
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    num_parameters: int
    weights_size_bytes: int
    num_layers: int
    hidden_size: int
    weights_dtype: str = ""
    pooling: PoolingFacts | None = None  # None: it generates


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table.

    `sliding_window`: keys that a query sees, itself included, None: all; `is_state`: a block has the state behind its last
    computed token; `block_size`: tokens per block, 0: as the engine core has asked.
    """

    layers: tuple[int, ...]
    block_size_bytes: int
    num_kv_heads: int
    head_size: int
    dtype: str
    sliding_window: int | None = None
    is_state: bool = False
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The engine core's layout: blocks (the null block included), limits of its plans, blocks of the second tier."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0


class LoadedModel(Protocol):
    """A model on its device."""

    @property
    def info(self) -> ModelInfo:
        """Facts for GetInfo."""

    @property
    def loras(self) -> ModelLoras | None:
        """Its adapters; None: it takes none."""

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the shape of the KV cache; a block has the same bytes in every group."""

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate the KV cache and return what runs steps over it."""

    def sleep(self) -> None:
        """Move the weights to host memory; there is no runner, and there will be none before `wake_up`."""

    def wake_up(self) -> None:
        """Move them back; FailedPrecondition, and nothing is changed, if the device has no room for them."""


def refuse_loras(request: LoadRequest, device: str) -> None:
    """ModelError if adapters are wanted of a device, or of a kind of model, that takes none."""
    if request.loras is not None:
        raise ModelError(f"enable_lora is not supported for {device}; adapters run on decoders on the cpu and cuda devices.")


def refuse_drafter(request: LoadRequest, device: str) -> None:
    """ModelError if a drafter is wanted of a device, or of a kind of model, that has none."""
    if request.draft_method:
        what = (
            "A draft model" if request.draft_method == "draft_model" else f"speculative_config.method {request.draft_method!r}"
        )
        raise ModelError(f"{what} is not supported for {device}; it runs beside a decoder on one worker of the cpu device.")


@runtime_checkable
class CountsExperts(Protocol):
    """A LoadedModel that counts what its experts compute."""

    @property
    def expert_tokens(self) -> Sequence[Ints]:
        """Of each layer with experts, the tokens that each one has computed [experts]; may be read from any thread."""


@runtime_checkable
class GroupDevice(Protocol):
    """A device that computes one model together with those of other workers."""

    def join_group(self, place: GroupPlace) -> Orders | None:
        """Meet the other ranks before a model is loaded, and again whenever one of them is replaced.

        Returns:
            On a member, the leader's orders; on the leader None.

        Raises:
            DeadlineExceeded: a rank did not come.
            Unavailable: the ranks cannot reach each other.
        """

    def leave_group(self) -> None:
        """Close the connections to the other ranks, if there are any."""


class Device(Protocol):
    """A kind of accelerator.

    Attributes:
        name: "cpu", "cuda" or "sim".
        verifies_drafts: whether its runners take plans with draft tokens.
        takes_embeddings: whether its runners take prompts with embeddings.
    """

    name: str
    verifies_drafts: bool
    takes_embeddings: bool

    def set_up(self) -> None:
        """Prepare the calling thread, the compute thread."""

    def load_model(self, request: LoadRequest, report: Progress) -> LoadedModel:
        """Load weights; `report(bytes loaded, bytes in all)`. ModelError when the files cannot be served."""

    def available_memory(self, model: LoadedModel, *, utilization: float, max_num_batched_tokens: int) -> int:
        """Return the bytes that KV blocks may take."""

    def give_back_memory(self) -> None:
        """Return to the system what was freed, so that other processes can have it."""

    def check(self) -> None:
        """Raise an error if the device fails every later call, too, as CUDA does after an illegal memory access."""
