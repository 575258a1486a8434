"""Unpacked source: returns the matrices of a quantized checkpoint under the names of float matrices."""

import torch

from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors
from tetrad.worker_svc.checkpoint.packed_weights.reader import Packed, Reader
from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource, values_of
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource

_WEIGHT = ".weight"


class UnpackedSource(WrappedSource):
    """A WeightSource that unpacks matrices of another source; float matrices are passed through unchanged.

    Args:
        source: the files.
        reader: the reader of the checkpoint's format.
    """

    def __init__(self, source: WeightSource, reader: Reader) -> None:
        super().__init__(source)
        self._reader = reader

    def has(self, name: str) -> bool:
        """Return whether the files have this tensor, in floats or packed."""
        return self._source.has(name) or self._is_packed(name)

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        if not self._is_packed(name):
            return self._source.load(name)
        packed, stored_bytes = self._read(name)
        return values_of(packed), stored_bytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its stored type; a packed matrix is in float32."""
        return self.load(name)[0] if self._is_packed(name) else self._source.load_stored(name)

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return a packed matrix and its stored size in bytes; None if it is not packed."""
        return self._read(name) if self._is_packed(name) else None

    def _is_packed(self, name: str) -> bool:
        return name.endswith(_WEIGHT) and self._reader.reads(self._source, name.removesuffix(_WEIGHT))

    def _read(self, name: str) -> tuple[Packed, int]:
        files = _Counted(self._source)
        return self._reader.read(files, name.removesuffix(_WEIGHT)), files.num_bytes


class _Counted:
    """StoredTensors that count the bytes of loaded tensors."""

    def __init__(self, files: StoredTensors) -> None:
        self._files = files
        self._sizes: dict[str, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes.values())

    def has(self, name: str) -> bool:
        return self._files.has(name)

    def load_stored(self, name: str) -> torch.Tensor:
        stored = self._files.load_stored(name)
        self._sizes[name] = stored.nbytes
        return stored
