"""LoRA values: low-rank changes of a model's linear layers, and the interface of a model that applies them.

An adapter is read and packed beside the compute thread (`read`), then installed by it between two steps. Rows of a step name
adapters by id; 0 is the base model. Knows nothing of files or of how a model computes products.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tetrad.worker_svc.core.plan import Ints


@dataclass(frozen=True, slots=True)
class LoraLimits:
    """How many adapters there may be, and how large.

    Attributes:
        max_loras: different ones in a step.
        max_lora_rank: of each.
        max_cpu_loras: in host memory.
    """

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int


@dataclass(frozen=True, slots=True)
class LoraSite:
    """A module that adapters may change: a linear layer [inputs, outputs], or a table of embeddings [vocabulary, outputs]."""

    inputs: int
    outputs: int
    is_table: bool = False


class PackedLora(Protocol):
    """An adapter in the form in which a model applies it."""

    @property
    def digest(self) -> bytes:
        """sha256 of its files."""


class ModelLoras(Protocol):
    """The adapters of one loaded model. All methods but `read` belong to the compute thread."""

    def read(self, path: Path) -> PackedLora:
        """Read and pack an adapter's directory, on any thread; ModelError or NotFound, naming it, if it cannot be used."""

    def install(self, lora_id: int, packed: PackedLora) -> None:
        """Let requests use an adapter under this id."""

    def remove(self, lora_id: int) -> None:
        """Forget an adapter; one that is not installed is no error."""

    def clear(self) -> None:
        """Forget all adapters."""

    def has(self, lora_id: int) -> bool:
        """Return whether an adapter is installed."""

    def select(self, lora_ids: Ints) -> None:
        """Set the adapter of each row [N] of what the model computes next; 0: none."""
