"""WeightSource: reads a model's tensors by name, from files of any supported format (open.py opens one).

Names are those of Hugging Face; tensors are on the host, in float32 unless the caller chooses another form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.checkpoint.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.checkpoint.packed_weights.matrices import Matrix
from tetrad.worker_svc.checkpoint.packed_weights.stacks import MatrixStack

DOWNLOAD_AGAIN = "The files are incomplete, or belong to another config: download the model again."
"""Advice at the end of errors about tensors that do not fit the config."""

Progress = Callable[[int, int], None]
"""Callback (bytes loaded, total bytes), called on the compute thread."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix [rows, columns] as stored in a GGUF file, or the matrices of all experts, one below another.

    Attributes:
        kind: GGUF's number of the type.
        shape: number of rows of all matrices together, and number of columns.
        rows: [rows, bytes of a row] uint8, or [experts, rows, bytes of a row]; possibly in the mapped file's memory.
    """

    kind: int
    shape: tuple[int, int]
    rows: npt.NDArray[np.uint8]

    @property
    def form(self) -> object:
        """The properties that matrices must share so that their rows can be concatenated."""
        return self.kind, self.rows.shape[1]

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> "QuantizedTensor":
        """Return a matrix of some rows; `choose` selects them from a tensor [rows] or [experts, rows]."""
        chosen = choose(torch.arange(self.shape[0]).view(self.rows.shape[:-1])).numpy()
        rows = self.rows.reshape(self.shape[0], -1)[chosen]
        return QuantizedTensor(self.kind, (len(rows), self.shape[1]), rows)

    @property
    def block(self) -> int:
        """The number of columns in a block, which is stored as a unit."""
        import gguf

        columns: int = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.kind)][0]
        return columns

    def of_columns(self, first: int, end: int) -> "QuantizedTensor":
        """Return a matrix of the columns from `first` up to `end`, in whole blocks."""
        import gguf

        block, size_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.kind)]
        rows = self.rows[..., first // block * size_bytes : end // block * size_bytes]
        return QuantizedTensor(self.kind, (self.shape[0], end - first), rows)

    def dequantized(self) -> torch.Tensor:
        """Return the weights [rows, columns] in float32."""
        import gguf

        from tetrad.worker_svc.checkpoint.gguf_values import dequantize  # both are imported where there is a GGUF file

        return torch.from_numpy(dequantize(self.rows, gguf.GGMLQuantizationType(self.kind)))


QuantizedMatrix = QuantizedTensor | GroupedMatrix
"""A quantized matrix of a GGUF file as it is stored, or one of another checkpoint in groups that are in order."""
StoredMatrix = QuantizedTensor | Matrix | MatrixStack
"""A matrix as it is stored, or the matrices of all experts."""


def values_of(matrix: StoredMatrix) -> torch.Tensor:
    """Return the weights of a stored matrix in float32."""
    return matrix if isinstance(matrix, torch.Tensor) else matrix.dequantized()


class WeightSource(Protocol):
    """The open files of a model."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's values in the form of config.json."""

    @property
    def total_bytes(self) -> int:
        """The stored size of all tensors in bytes."""

    @property
    def stored_type(self) -> str:
        """The type in which most bytes are stored: "bfloat16", "Q4_1", or the name of a quantization method."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this name."""

    def unread(self) -> list[str]:
        """Return the names, in the files, of tensors that have not been loaded."""

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its stored size in bytes; raise KeyError if there is none."""

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its stored type, possibly in the mapped file's memory; GGUF's quantized types in float32."""

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return the matrix as stored and its size in bytes; None if it is in floats; raise KeyError if there is none."""
