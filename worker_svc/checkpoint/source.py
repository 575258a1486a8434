"""WeightSource: reads a model's tensors by name, from files of any supported format (open.py opens one).

Names are Hugging Face's; tensors are on the host, in float32 unless the caller chooses otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.packed_weights.stacks import MatrixStack

DOWNLOAD_AGAIN = "The files are incomplete, or belong to another config: download the model again."
"""What to do if tensors and config do not fit each other; ends an error."""

Progress = Callable[[int, int], None]
"""(bytes loaded, bytes in all), called from the compute thread."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix [rows, columns] as a GGUF file has it, or several below each other, those of all experts.

    Attributes:
        kind: GGUF's number of its type.
        shape: rows of all matrices, and columns.
        rows: [rows, bytes of a row] uint8, of experts [experts, rows, bytes of a row]; may be the mapped file itself.
    """

    kind: int
    shape: tuple[int, int]
    rows: npt.NDArray[np.uint8]

    @property
    def form(self) -> object:
        """What matrices have in common that can be put below each other."""
        return self.kind, self.rows.shape[1]

    def of_rows(self, choose: Callable[[torch.Tensor], torch.Tensor]) -> "QuantizedTensor":
        """Return the matrix of some rows, as `choose` takes them out of a tensor [rows] or [experts, rows]."""
        chosen = choose(torch.arange(self.shape[0]).view(self.rows.shape[:-1])).numpy()
        rows = self.rows.reshape(self.shape[0], -1)[chosen]
        return QuantizedTensor(self.kind, (len(rows), self.shape[1]), rows)

    @property
    def block(self) -> int:
        """Columns that are stored together."""
        import gguf

        columns: int = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.kind)][0]
        return columns

    def of_columns(self, first: int, end: int) -> "QuantizedTensor":
        """Return the matrix of some columns, of whole blocks."""
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
"""A matrix as a GGUF file or another checkpoint has it."""
StoredMatrix = QuantizedMatrix | MatrixStack | torch.Tensor
"""The same, the matrices of all experts, or a matrix in float32 whose values or columns do not lie in groups."""


def values_of(matrix: StoredMatrix) -> torch.Tensor:
    """Return the weights of a stored matrix in float32."""
    return matrix if isinstance(matrix, torch.Tensor) else matrix.dequantized()


class WeightSource(Protocol):
    """A model's files, opened."""

    @property
    def config(self) -> Mapping[str, Any]:
        """In the form of config.json."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""

    @property
    def stored_type(self) -> str:
        """Type that most of the bytes are stored in: "bfloat16", "Q4_1", or a quantization's name."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""

    def unread(self) -> list[str]:
        """Return the tensors that have not been loaded, named as in the files."""

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored; KeyError if there is none."""

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in the type it is stored in, perhaps the mapped file itself; GGUF's quantized types in float32."""

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return the matrix as it is stored and its bytes; None if it is stored in floats; KeyError if there is none."""
