"""Device interface: a device loads a model, reports the memory for KV blocks and creates the runner of the model's steps.

Called by worker.py, always on the compute thread. Knows nothing of gRPC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.lora import LoraLimits, ModelLoras
from tetrad.worker_svc.core.media import Modality, ModelMedia
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.pooling import PoolingFacts
from tetrad.worker_svc.core.ranks import GroupPlace, Orders
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.core.sampler_options import LogprobsMode, SamplerOptions

DRAFT_METHODS = ("draft_model", "eagle3", "mtp")
"""Values of `LoadRequest.draft_method`: the methods by which a worker can propose draft tokens."""

Progress = Callable[[int, int], None]
"""Callback `(completed, total)` of a long operation, such as loading weights in bytes."""


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Weights of an update, in place of a model's own.

    Attributes:
        path: the directory or .gguf file as the update named it.
        update_id: identifies the update: files at one path may differ from one update to the next.
        files_digest: see checkpoint/replacement.py; empty: any files.
    """

    path: str
    update_id: str
    files_digest: str = ""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The model to load and its load options. Equal requests mean the same model."""

    model: str  # the name given by the caller
    path: Path  # the model's directory or .gguf file
    dtype: str = "auto"
    quantization: str = ""
    hf_overrides_json: str = ""
    random_weights: bool = False
    seed: int = 0
    loras: LoraLimits | None = None  # None: LoRA adapters are disabled
    runner: str = "auto"  # "generate" or "pooling"
    convert: str = "auto"  # "none", "embed" or "classify"
    pooler_config_json: str = ""
    draft_method: str = ""  # "draft_model", "eagle3" or "mtp"; empty: no drafts
    expert_parallel: bool = False  # each shard holds whole experts, instead of a part of every expert
    num_draft_tokens: int = 0  # maximum number of drafts of a request in a step; 0: unknown
    logits_processors: tuple[tuple[str, type], ...] = ()  # names and classes of custom logits processors
    takes_media: bool = True  # False: the tower of the model is not loaded
    processor_kwargs_json: str = ""  # settings of the image processor that replace those of the model's files
    draft_path: Path | None = None  # path of the draft model or draft head; None: no drafts, or a head inside the model's files
    weights: NewWeights | None = None  # None: the model's own
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS  # the values that requests get as log-probabilities

    @property
    def sampler(self) -> SamplerOptions:
        """The settings of the model's sampler."""
        return SamplerOptions(self.logits_processors, self.logprobs_mode)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model."""

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
    pooling: PoolingFacts | None = None  # None: the model only generates
    modalities: tuple[Modality, ...] = ()  # empty: the model takes only text
    uses_mrope: bool = False  # positions have three axes: time, height and width
    is_encoder_decoder: bool = False  # prompts have one item, to whose encoding the layers attend (cross-attention)
    supports_transcription: bool = False  # it turns speech into text
    encoded_position_bytes: int = 0  # bytes of a position of an encoding in the encoder cache, if is_encoder_decoder


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table.

    Attributes:
        layers: indices of the layers.
        block_size_bytes: bytes of one block, over all layers of the group.
        num_kv_heads, head_size, dtype: shape and type of the keys and values.
        sliding_window: number of keys that a query attends to, itself included; None: all.
        is_state: a block holds the layer's state after the block's last computed token, instead of keys and values.
        block_size: tokens per block; 0: the block size that the engine core requested.
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
    """The engine core's KV layout: number of blocks (null block included), limits of its plans, blocks of the second tier,
    and the encoder cache's size in embeddings.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0
    encoder_cache_size: int = 0


class LoadedModel(Protocol):
    """A model on its device."""

    @property
    def info(self) -> ModelInfo:
        """The model's facts, which GetInfo returns."""

    @property
    def loras(self) -> ModelLoras | None:
        """The model's LoRA adapters; None: the model does not support adapters."""

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups of the KV cache; a block has the same size in bytes in every group."""

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate the KV cache and return a runner that executes steps with it."""

    def sleep(self) -> None:
        """Move the weights to host memory. The caller has dropped the runner, and makes none before `wake_up`."""

    def wake_up(self) -> None:
        """Move the weights back to the device.

        Raises FailedPrecondition, without any change, if the device has too little free memory.
        """


def with_media(info: ModelInfo, media: ModelMedia | None) -> ModelInfo:
    """Return the facts of a model together with its tower; None: it has none."""
    if media is None:
        return info
    return replace(
        info,
        num_parameters=info.num_parameters + media.tower.num_parameters,
        weights_size_bytes=info.weights_size_bytes + media.tower.size_bytes,
        modalities=media.tower.modalities,
        uses_mrope=media.tower.uses_mrope,
        is_encoder_decoder=media.tower.is_attended,
        supports_transcription=media.tower.is_attended,
        encoded_position_bytes=media.tower.embed_bytes if media.tower.is_attended else 0,
    )


def refuse_loras(request: LoadRequest, device: str) -> None:
    """Raise ModelError if the request enables adapters; `device` names a device or kind of model without support for them."""
    if request.loras is not None:
        raise ModelError(f"enable_lora is not supported for {device}; adapters run on decoders on the cpu and cuda devices.")


def refuse_drafter(request: LoadRequest, device: str) -> None:
    """Raise ModelError if the request names a draft method; `device` names a device or kind of model without support for it."""
    if request.draft_method:
        is_model = request.draft_method == "draft_model"
        what = "A draft model" if is_model else f"speculative_config.method {request.draft_method!r}"
        raise ModelError(f"{what} is not supported for {device}; it runs beside a decoder on the cpu device or on GPUs.")


@runtime_checkable
class CountsExperts(Protocol):
    """A LoadedModel that counts the tokens which each expert computes."""

    @property
    def expert_tokens(self) -> Sequence[Ints]:
        """For each layer with experts, the number of tokens that each expert has computed [experts]; safe on any thread."""


@runtime_checkable
class SharesExperts(Protocol):
    """A LoadedModel that may have only some of the experts, while the workers of other engines have the others."""

    @property
    def is_shared(self) -> bool:
        """Whether they do."""

    def meet(self) -> None:
        """Connect to these workers; do nothing if there are none. Raises Unavailable if one is not ready in time."""


@runtime_checkable
class GroupDevice(Protocol):
    """A device that computes one model together with those of other workers.

    Attributes:
        keeps_runners: whether a runner works on after its rank has joined another group; False: it has recorded connections.
    """

    keeps_runners: bool

    def join_group(self, place: GroupPlace) -> Orders | None:
        """Connect to the other ranks before a model is loaded, and again whenever one of them is replaced.

        Returns:
            On a member, the leader's orders; on the leader None.

        Raises:
            DeadlineExceeded: a rank did not join in time.
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
        keeps_states: whether its runners take drafts also with a model that has states.
        shares_experts: whether workers of other engines have experts of its models.
    """

    name: str
    verifies_drafts: bool
    takes_embeddings: bool
    keeps_states: bool
    shares_experts: bool

    def set_up(self) -> None:
        """Prepare the calling thread, the compute thread."""

    def load_model(self, request: LoadRequest, report: Progress) -> LoadedModel:
        """Load the weights, and call `report(bytes loaded, total bytes)`; raise ModelError if the files cannot be served."""

    def available_memory(
        self, model: LoadedModel, *, utilization: float, max_num_batched_tokens: int, max_num_encoder_tokens: int = 0
    ) -> int:
        """Return the number of bytes available for KV blocks.

        Args:
            model: the loaded model.
            utilization: share of the device's memory that may be used.
            max_num_batched_tokens: tokens of the longest step.
            max_num_encoder_tokens: embeddings of the largest media item; 0: the model takes only text.
        """

    def give_back_memory(self) -> None:
        """Return freed memory to the operating system, so that other processes can use it."""

    def check(self) -> None:
        """Raise an error if the device is lost: every later call fails too, as in CUDA after an illegal memory access."""
