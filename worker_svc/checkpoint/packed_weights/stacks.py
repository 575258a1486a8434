"""Matrix stacks: the matrices of all experts of a layer, which a checkpoint stores in one tensor or a few."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors, load
from tetrad.worker_svc.checkpoint.packed_weights.matrices import Matrix

ReadMatrix = Callable[[StoredTensors, str], Matrix]
"""Function (tensors of one matrix, its name) -> the matrix."""

_PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
)
_DIMENSIONS = 3


class MatrixStack(Protocol):
    """The matrices of all experts; only selected rows are unpacked."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows of all matrices together, and the number of columns."""

    def dequantized(self) -> torch.Tensor:
        """Return the weights [E, R, C] in float32."""

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> Matrix:
        """Return a matrix of some rows of one expert; `choose` selects them from tensors [E, R, ...]."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertStack:
    """A MatrixStack whose tensors are those of a single matrix, with an additional first dimension of experts.

    Attributes:
        name: name of the stack.
        parts: end of a tensor's name -> the tensor [E, ...], or a tensor that all experts share.
        sizes: number of experts, and rows and columns of each.
        read: unpacks one expert's matrix.
    """

    name: str
    parts: Mapping[str, torch.Tensor]
    sizes: tuple[int, int, int]
    read: ReadMatrix

    @property
    def shape(self) -> tuple[int, int]:
        """See MatrixStack."""
        experts, rows, columns = self.sizes
        return experts * rows, columns

    def dequantized(self) -> torch.Tensor:
        """See MatrixStack."""
        matrices = [self._of_expert(expert) for expert in range(self.sizes[0])]
        return torch.stack([each if isinstance(each, torch.Tensor) else each.dequantized() for each in matrices])

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> Matrix:
        """See MatrixStack."""
        experts, rows, _ = self.sizes
        chosen = choose(torch.arange(experts * rows).view(experts, rows))
        matrix, chosen = self._of_expert(int(chosen[0]) // rows), chosen % rows
        return matrix[chosen] if isinstance(matrix, torch.Tensor) else matrix.of_rows(lambda tensor: tensor[chosen])

    def _of_expert(self, expert: int) -> Matrix:
        _, rows, columns = self.sizes
        parts = {f"{self.name}.{part}": t[expert] if t.dim() == _DIMENSIONS else t for part, t in self.parts.items()}
        if f"{self.name}.weight_packed" in parts:
            parts[f"{self.name}.weight_shape"] = torch.tensor([rows, columns])
        matrix = self.read(_Tensors(parts), self.name)
        if tuple(matrix.shape) != (rows, columns):
            raise ModelError(f"Tensor {self.name}.weight holds {tuple(matrix.shape)} values an expert, not {(rows, columns)}.")
        return matrix


class _Tensors:
    """StoredTensors in a dictionary."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def has(self, name: str) -> bool:
        return name in self._tensors

    def load_stored(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def find_stack(files: StoredTensors, name: str, read: ReadMatrix) -> ExpertStack | None:
    """Return the stack with a name (without ".weight"); None if the name is that of a single matrix.

    Args:
        files: the checkpoint.
        name: name of the stack or the matrix.
        read: unpacks one expert's matrix.
    """
    stem = "weight_packed" if files.has(f"{name}.weight_packed") else "weight"
    stored = files.load_stored(f"{name}.{stem}")
    if stored.dim() != _DIMENSIONS:
        return None
    experts, rows, columns = stored.shape
    if files.has(f"{name}.weight_shape"):
        columns = int(load(files, f"{name}.weight_shape", (2,), (3,), dtypes=[torch.int32, torch.int64])[-1])
    elif stem == "weight_packed" and stored.dtype == torch.uint8:
        columns *= 2
    parts = {part: files.load_stored(f"{name}.{part}") for part in _PARTS if files.has(f"{name}.{part}")}
    for part, tensor in parts.items():
        if tensor.dim() == _DIMENSIONS and (len(tensor) != experts or not tensor.numel()):
            raise ModelError(
                f"Tensor {name}.{part} has shape {tuple(tensor.shape)}, but its quantization asks for {experts} experts."
            )
    return ExpertStack(name, parts, (experts, rows, columns), read)
