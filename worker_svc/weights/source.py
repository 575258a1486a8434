"""Weight sources: where tensors come from, whatever the file format.

`open_source` looks at a path and returns the source for it. Names are Hugging Face's; tensors are on the host, in
float32 if not asked for otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import ModelError

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


def open_source(path: Path) -> WeightSource:
    """Return the source for a directory (config.json and *.safetensors) or a .gguf file; ModelError if it is neither."""
    # Either library takes a good part of a second to import: only the one that is needed.
    if path.suffix == ".gguf":
        from tetrad.worker_svc.weights.gguf_file import GgufSource

        return GgufSource(path)
    if path.is_dir():
        from tetrad.worker_svc.weights.safetensors_dir import SafetensorsSource

        return SafetensorsSource(path)
    raise ModelError(f"{path} is neither a directory with config.json nor a .gguf file.")
