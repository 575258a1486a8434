"""GGUF reader: a .gguf file opened and checked, its metadata in config.json's form. Never imports torch.

The header comes from services/gguf_container.py. Every tensor is checked against the file's length before anything is read
from it: a truncated file fails at once, in one line, and no tensor is made larger than its own bytes allow.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tetrad.services.errors import ModelError, one_line
from tetrad.services.gguf_container import GgufTensor, read_gguf_header
from tetrad.worker_svc.checkpoint.gguf_metadata import config_from_metadata

_ROPE_FACTORS = "rope_freqs.weight"
_MAX_ROPE_FACTORS = 1024
_PLAIN_TYPES: dict[Any, type[np.generic]] = {
    gguf.GGMLQuantizationType.F16: np.float16,
    gguf.GGMLQuantizationType.F32: np.float32,
}


class GgufFile:
    """One mapped file. ModelError when it is truncated, corrupt or of an architecture we do not know."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf_header(path)
        self._metadata = header.metadata
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._sizes = {tensor.name: self._size_bytes(tensor) for tensor in header.tensors}
        self._unread = set(self._tensors)
        self.total_bytes = sum(self._sizes.values())
        self._check_length()
        # Of the plain class: each of the thousands of slices that are taken below costs a microsecond more of the other.
        self._data: npt.NDArray[np.uint8] = np.asarray(np.memmap(path, mode="r"))
        self.architecture = str(self.field("general.architecture"))
        self.config = self._read_config()

    @property
    def stored_type(self) -> str:
        """The type that most of the bytes are stored in, as GGUF calls it."""
        sizes: Counter[int] = Counter()
        for tensor in self._tensors.values():
            sizes[tensor.kind] += self._sizes[tensor.name]
        return gguf.GGMLQuantizationType(sizes.most_common(1)[0][0]).name if sizes else ""

    def field(self, key: str) -> Any:
        """Return a metadata value, or None."""
        return self._metadata.get(key)

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this GGUF name."""
        return name in self._tensors

    def unread(self) -> list[str]:
        """Return the names of the tensors that have not been handed out."""
        return sorted(self._unread)

    def dequantize(self, name: str) -> tuple[npt.NDArray[np.float32], int]:
        """Return a tensor in float32 and its bytes as stored; KeyError if there is none."""
        tensor, size = self._tensors[name], self._sizes[name]
        stored = self._data[tensor.offset : tensor.offset + size]
        kind = gguf.GGMLQuantizationType(tensor.kind)
        try:
            if kind in _PLAIN_TYPES:
                stored = stored.view(_PLAIN_TYPES[kind]).reshape(tensor.shape[::-1])
            else:
                stored = stored.reshape(gguf.quant_shape_to_byte_shape(tensor.shape[::-1], kind))
            values: npt.NDArray[np.float32] = gguf.dequantize(stored, kind)
        except (NotImplementedError, ValueError) as error:
            raise self._unreadable(tensor, f"of type {kind.name} cannot be read: {one_line(error)}") from error
        self._unread.discard(name)
        return values, size

    def stored(self, name: str) -> tuple[int, npt.NDArray[np.uint8]] | None:
        """Return the number of a matrix's type and its rows [rows, bytes of a row] in the mapped file.

        None if it is no matrix or not quantized; KeyError if there is none.
        """
        tensor, size = self._tensors[name], self._sizes[name]
        if len(tensor.shape) != 2 or gguf.GGMLQuantizationType(tensor.kind) in _PLAIN_TYPES:
            return None
        columns, rows = tensor.shape
        if columns % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)][0]:
            raise self._unreadable(tensor, f"has rows of {columns} values, no whole number of blocks")
        self._unread.discard(name)
        return tensor.kind, self._data[tensor.offset : tensor.offset + size].reshape(rows, -1)

    def _read_config(self) -> dict[str, Any]:
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"{self.path} has no tensor token_embd.weight of two dimensions.")
        config = config_from_metadata(self.field, vocab_size=embedding.shape[-1], is_tied="output.weight" not in self._tensors)
        factors = self._tensors.get(_ROPE_FACTORS)
        if factors is not None:
            if math.prod(factors.shape) > _MAX_ROPE_FACTORS:
                raise self._unreadable(factors, f"has more than {_MAX_ROPE_FACTORS} values")
            config["rope_scaling"] = {"rope_type": "factors", "factors": self.dequantize(_ROPE_FACTORS)[0].tolist()}
        return config

    def _size_bytes(self, tensor: GgufTensor) -> int:
        try:
            per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        except (KeyError, ValueError):
            raise self._unreadable(tensor, f"is of a type that is not known: {tensor.kind}") from None
        # Python's numbers do not overflow: a product of four lengths near 2^64 is as large as it says.
        return int(math.prod(tensor.shape) // per_block * block_bytes)

    def _check_length(self) -> None:
        size = self.path.stat().st_size
        needed = max((tensor.offset + self._sizes[name] for name, tensor in self._tensors.items()), default=0)
        if size < needed:
            raise ModelError(f"{self.path} is truncated: it has {size} bytes of at least {needed}.")

    def _unreadable(self, tensor: GgufTensor, why: str) -> ModelError:
        return ModelError(f"{self.path.name}: tensor {tensor.name[:80]!r} {why}.")
