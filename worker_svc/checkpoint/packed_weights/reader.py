"""Reader: finds the matrices of one format of quantization."""

from typing import Protocol

from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors
from tetrad.worker_svc.checkpoint.packed_weights.matrices import Matrix
from tetrad.worker_svc.checkpoint.packed_weights.stacks import MatrixStack

Packed = Matrix | MatrixStack
"""A matrix, or the matrices of all experts."""


class Reader(Protocol):
    """A reader of packed matrices; its only state are values of the config."""

    def reads(self, files: StoredTensors, name: str) -> bool:
        """Return whether the matrix of a prefix (without ".weight") is stored in this format."""

    def read(self, files: StoredTensors, name: str) -> Packed:
        """Return the matrix; raise ModelError if its tensors contradict each other."""
