"""GGUF weights: reads tensors from a mapped file in llama.cpp's format, dequantized to float32 or as stored.

Tensors have the names of the file; CanonicalSource maps them to canonical names (gguf_architectures.py).
"""

import math
from pathlib import Path

import gguf
import numpy as np
import torch

from tetrad.worker_svc.checkpoint.gguf_reader import GgufFile
from tetrad.worker_svc.checkpoint.source import QuantizedTensor

_MATRIX = 2
_KEPT_STACKS = 2
"""Number of stacks of experts that are kept: the loading of experts alternates between gate and up."""


class GgufSource:
    """The WeightSource of one .gguf file, under GGUF's names."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.architecture = self._file.architecture
        self.config = self._file.config
        self.total_bytes = self._file.total_bytes
        self.stored_type = self._file.stored_type
        self._stacks: dict[str, torch.Tensor] = {}

    def has(self, name: str) -> bool:
        """Return whether the file has this tensor."""
        return self._file.has(name)

    def unread(self) -> list[str]:
        """Return the names of the tensors that have not been loaded."""
        return self._file.unread()

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        values, stored_bytes = self._file.dequantize(name)
        # Always a copy: the file is mapped read-only, and a float32 tensor would be a view of the mapped file.
        return torch.tensor(values, dtype=torch.float32), stored_bytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its type of 16 bits, or in float32; the caller must not change it.

        The last stacks of experts are kept, because they are loaded once for each expert.
        """
        stack = self._stacks.pop(name, None)
        stack = self._load_stored(name) if stack is None else stack
        if stack.dim() > _MATRIX:
            self._stacks[name] = stack
            if len(self._stacks) > _KEPT_STACKS:
                self._stacks.pop(next(iter(self._stacks)))
        return stack

    def _load_stored(self, name: str) -> torch.Tensor:
        found = self._file.halves(name)
        if found is None:
            return self.load(name)[0]
        kind, values = found
        return torch.tensor(values.view(np.int16)).view(getattr(torch, kind))

    def load_quantized(self, name: str) -> tuple[QuantizedTensor, int] | None:
        """Return the matrix as stored and its size in bytes; None if it is stored in floats."""
        found = self._file.stored(name)
        if found is None:
            return None
        kind, rows = found
        *lengths, columns = gguf.quant_shape_from_byte_shape(rows.shape, gguf.GGMLQuantizationType(kind))
        return QuantizedTensor(kind, (math.prod(lengths), columns), rows), rows.nbytes
