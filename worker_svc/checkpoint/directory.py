"""Model directory: reads config.json and files of weights, in safetensors or PyTorch's format, as a WeightSource.

Files are mapped into memory, not read completely.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import read_config_file
from tetrad.worker_svc.checkpoint.safetensors_file import SafetensorsFile
from tetrad.worker_svc.checkpoint.shards import SAFETENSORS, weight_files
from tetrad.worker_svc.checkpoint.torch_file import TorchFile


class TensorFile(Protocol):
    """One open file of weights."""

    def names(self) -> Iterable[str]:
        """Return the names of the file's tensors."""

    def get(self, name: str) -> torch.Tensor:
        """Return a tensor, possibly in the mapped file's memory; raise ModelError if it cannot be read."""


class DirectorySource:
    """The WeightSource of a Hugging Face model directory.

    Raises ModelError if a file is missing, truncated or of another format.
    """

    def __init__(self, directory: Path) -> None:
        self.config: Mapping[str, Any] = read_config_file(directory)
        files: dict[str, TensorFile] = {path.name: _open(path) for path in weight_files(directory)}
        self._file_of = {name: file for file in files.values() for name in file.names()}
        self._unread = set(self._file_of)
        self.total_bytes = sum((directory / name).stat().st_size for name in files)

    @property
    def stored_type(self) -> str:
        """The name of the quantization method, or the float type in config.json."""
        quantization = self.config.get("quantization_config")
        if isinstance(quantization, Mapping):
            return str(quantization.get("quant_method", ""))
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "")

    def has(self, name: str) -> bool:
        """Return whether one of the files has this tensor."""
        return name in self._file_of

    def unread(self) -> list[str]:
        """Return the names of the tensors that have not been loaded."""
        return sorted(self._unread)

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        stored = self.load_stored(name)
        # Floats of one byte have no meaning without their scales.
        if not stored.is_floating_point() or stored.itemsize == 1:
            found = str(stored.dtype).removeprefix("torch.")
            raise ModelError(f"Tensor {name} is of type {found}; the config names no quantization that explains it.")
        # Always a copy: a tensor of the mapped file would keep the file's pages in memory.
        return stored.to(torch.float32, copy=True), stored.numel() * stored.itemsize

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in the memory of the mapped file."""
        stored = self._file_of[name].get(name)
        self._unread.discard(name)
        return stored

    def load_quantized(self, name: str) -> None:
        """Return None: quantized matrices consist of several tensors here, see unpacked.py."""


def _open(path: Path) -> TensorFile:
    return SafetensorsFile(path) if path.match(SAFETENSORS) else TorchFile(path)
