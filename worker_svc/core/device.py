"""Device interface: loads a model, reports the memory for KV blocks, makes the runner of its steps.

Called by worker.py, always on the compute thread. Knows nothing of gRPC.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tetrad.worker_svc.core.plan import Runner

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


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded."""

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


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table; all of a model's, here."""

    num_layers: int
    block_size_bytes: int
    num_kv_heads: int
    head_size: int
    dtype: str


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What the engine core decided: blocks (the null block included), limits of its plans, blocks of the second tier."""

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

    def kv_group(self, block_size: int) -> KvGroup:
        """Return the shape of the KV cache."""

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate the KV cache and return what runs steps over it."""

    def sleep(self) -> None:
        """Move the weights to host memory; there is no runner, and there will be none before `wake_up`."""

    def wake_up(self) -> None:
        """Move them back; FailedPrecondition, and nothing is changed, if the device has no room for them."""


class Device(Protocol):
    """A kind of accelerator."""

    name: str

    def set_up(self) -> None:
        """Prepare the calling thread, the compute thread."""

    def load_model(self, request: LoadRequest, report: Progress) -> LoadedModel:
        """Load weights; `report(bytes loaded, bytes in all)`. ModelError when the files cannot be served."""

    def available_memory(self, model: LoadedModel, *, utilization: float, max_num_batched_tokens: int) -> int:
        """Return the bytes that KV blocks may take."""

    def give_back_memory(self) -> None:
        """Return to the system what was freed, so that other processes can have it."""
