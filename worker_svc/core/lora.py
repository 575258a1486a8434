"""LoRA values: low-rank changes of a model's linear layers, and the interface of a model that applies them.

Another thread reads and packs an adapter (`read`); the compute thread then installs it between two steps. Rows of a step refer
to adapters by id; 0 is the base model. Knows nothing of files or of how a model computes products.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tetrad.worker_svc.core.plan import Ints


@dataclass(frozen=True, slots=True)
class LoraLimits:
    """Limits of the number and the size of adapters.

    Attributes:
        max_loras: largest number of different adapters in a step.
        max_lora_rank: largest rank of an adapter.
        max_cpu_loras: largest number of adapters in host memory.
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
        """The SHA-256 digest of the adapter's files."""


class ModelLoras(Protocol):
    """The adapters of one loaded model. All methods but `read` belong to the compute thread."""

    def read(self, path: Path) -> PackedLora:
        """Read and pack an adapter's directory; safe on any thread.

        Raises ModelError or NotFound, with the directory's name, if the adapter cannot be used.
        """

    def install(self, lora_id: int, packed: PackedLora) -> None:
        """Install an adapter under this id, so that requests can use it."""

    def remove(self, lora_id: int) -> None:
        """Remove an adapter; do nothing if it is not installed."""

    def clear(self) -> None:
        """Remove all adapters."""

    def has(self, lora_id: int) -> bool:
        """Return whether an adapter is installed."""

    def select(self, lora_ids: Ints) -> None:
        """Set the adapter id of each row [N] of the model's next computation; 0: no adapter."""
