"""GGUF weights: llama.cpp's file format, tensor by tensor from the mapped file: dequantized to float32, or as stored.

llama.cpp stores q and k of the llama architecture with the halves of each head interleaved; that is undone here, so that
every source hands out the same order.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.gguf_metadata import gguf_name
from tetrad.worker_svc.checkpoint.gguf_reader import GgufFile
from tetrad.worker_svc.checkpoint.source import QuantizedTensor
from tetrad.worker_svc.model_facts.config import read_config


class GgufSource:
    """A WeightSource over one .gguf file."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.config = self._file.config
        self.total_bytes = self._file.total_bytes
        self.stored_type = self._file.stored_type
        self._head_dim = read_config(self.config).head_dim

    def has(self, name: str) -> bool:
        """Return whether the file has this tensor."""
        return self._file.has(gguf_name(name))

    def unread(self) -> list[str]:
        """Return the tensors that have not been loaded, by their GGUF names."""
        return self._file.unread()

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32, rows as Hugging Face orders them, and its bytes as stored."""
        values, stored_bytes = self._file.dequantize(gguf_name(name))
        # The file is mapped read-only, and a float32 tensor comes back as that very map: always a copy of our own.
        tensor = torch.tensor(values, dtype=torch.float32)
        if self._is_interleaved(name):
            tensor = tensor[torch.from_numpy(_half_rows(name, len(tensor), self._head_dim))]
        return tensor, stored_bytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor dequantized to float32."""
        return self.load(name)[0]

    def load_quantized(self, name: str) -> QuantizedTensor | None:
        """Return the matrix as stored, rows as Hugging Face orders them; None if it is stored in floats."""
        found = self._file.stored(gguf_name(name))
        if found is None:
            return None
        kind, rows = found
        columns = gguf.quant_shape_from_byte_shape(rows.shape, gguf.GGMLQuantizationType(kind))[1]
        if self._is_interleaved(name):
            rows = rows[_half_rows(name, len(rows), self._head_dim)]
        return QuantizedTensor(kind, (len(rows), columns), rows)

    def _is_interleaved(self, name: str) -> bool:
        return self._file.architecture == "llama" and name.split(".")[-2] in ("q_proj", "k_proj")


def _half_rows(name: str, num_rows: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Return the order that turns interleaved pairs of rows back into halves: the inverse of layers.rotary.interleave_heads."""
    if head_dim % 2 or num_rows % head_dim:
        raise ModelError(f"Tensor {name} has {num_rows} rows, which heads of {head_dim} do not divide into pairs.")
    return np.arange(num_rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
