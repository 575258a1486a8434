"""WeightSource: a model's tensors by name, whatever the file format (open.py opens one).

Names are Hugging Face's; tensors are on the host, in float32 unless the caller chooses otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Progress = Callable[[int, int], None]
"""(bytes loaded, bytes in all), called from the compute thread."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix [rows, columns] as a GGUF file has it.

    Attributes:
        kind: GGUF's number of its type.
        shape: rows and columns.
        rows: [rows, bytes of a row] uint8; may be the mapped file itself.
    """

    kind: int
    shape: tuple[int, int]
    rows: npt.NDArray[np.uint8]


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
        """Return the tensor in the type it is stored in, perhaps the mapped file itself; GGUF's own types come as float32."""

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        """Return the matrix as it is stored, None if it is stored in floats; KeyError if there is none."""
