"""GGUF part: one mapped .gguf file; the sizes of its tensors are checked against its length before any tensor is read.

A truncated file fails at once with an error of one line, and no tensor is larger than its bytes in the file. Never imports
torch.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tetrad.services.errors import ModelError
from tetrad.services.models.gguf_container import GgufTensor, read_gguf_header


class GgufPart:
    """One file: a whole model, or a part of a split model.

    Attributes:
        metadata: the metadata, by key.
        tensors: the tensors, by GGUF name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        header = read_gguf_header(path)
        self.metadata: Mapping[str, Any] = header.metadata
        self.tensors = {tensor.name: tensor for tensor in header.tensors}
        self._sizes = {tensor.name: self._size_bytes(tensor) for tensor in header.tensors}
        self._check_length()
        # A plain array: thousands of slices are taken from it, and slicing a memmap costs a microsecond more each.
        self._data: npt.NDArray[np.uint8] = np.asarray(np.memmap(path, mode="r"))

    def size_bytes(self, name: str) -> int:
        """Return the stored size of a tensor in bytes."""
        return self._sizes[name]

    def stored(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, as a view of the mapped file."""
        offset = self.tensors[name].offset
        return self._data[offset : offset + self._sizes[name]]

    def unreadable(self, tensor: GgufTensor, why: str) -> ModelError:
        """Return the error for a tensor that cannot be read."""
        return ModelError(f"{self._path.name}: tensor {tensor.name[:80]!r} {why}.")

    def _size_bytes(self, tensor: GgufTensor) -> int:
        try:
            per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        except (KeyError, ValueError):
            raise self.unreadable(tensor, f"is of a type that is not known: {tensor.kind}") from None
        # Python's integers do not overflow: a product of four lengths near 2^64 is exact.
        return int(math.prod(tensor.shape) // per_block * block_bytes)

    def _check_length(self) -> None:
        size = self._path.stat().st_size
        needed = max((tensor.offset + self._sizes[name] for name, tensor in self.tensors.items()), default=0)
        if size < needed:
            raise ModelError(f"{self._path} is truncated: it has {size} bytes of at least {needed}.")
