"""Safetensors: a directory with config.json and one file of tensors, or several under an index.

Files are mapped, not read whole.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tetrad.services.errors import ModelError, one_line
from tetrad.services.model_directory import find_model_file, list_model_files, read_model_json
from tetrad.worker_svc.checkpoint.model_config import read_config_file

_INDEX = "model.safetensors.index.json"
_MAX_NAMED = 10


class SafetensorsSource:
    """A WeightSource over a Hugging Face model directory.

    Raises ModelError when a file is missing, truncated or not what it says.
    """

    def __init__(self, directory: Path) -> None:
        self.config: Mapping[str, Any] = read_config_file(directory)
        self._files = {path.name: _open(path) for path in _tensor_files(directory)}
        self._file_of = {name: file for file, opened in self._files.items() for name in opened.keys()}  # noqa: SIM118 - no mapping
        self._unread = set(self._file_of)
        self.total_bytes = sum((directory / file).stat().st_size for file in self._files)

    @property
    def stored_type(self) -> str:
        """The quantization's name, or what config.json says of floats."""
        quantization = self.config.get("quantization_config")
        if isinstance(quantization, Mapping):
            return str(quantization.get("quant_method", ""))
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "")

    def has(self, name: str) -> bool:
        """Return whether one of the files has this tensor."""
        return name in self._file_of

    def unread(self) -> list[str]:
        """Return the tensors that have not been loaded."""
        return sorted(self._unread)

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        stored = self.load_stored(name)
        # The floats of one byte mean nothing without their scales.
        if not stored.is_floating_point() or stored.itemsize == 1:
            raise ModelError(
                f"{self._file_of[name]}: tensor {name} is of type {stored.dtype}; quantized safetensors need the cuda device."
            )
        # A tensor of the mapped file keeps the file's pages in use: always a copy of our own.
        return stored.to(torch.float32, copy=True), stored.numel() * stored.itemsize

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor of the mapped file."""
        file = self._file_of[name]
        try:
            stored: torch.Tensor = self._files[file].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file}: tensor {name} cannot be read: {one_line(error)}.") from error
        self._unread.discard(name)
        return stored

    def load_quantized(self, name: str) -> None:
        """Return None: nothing is stored in a GGUF type."""


def _tensor_files(directory: Path) -> list[Path]:
    index = read_model_json(directory, _INDEX)
    if index is None:
        files = list_model_files(directory, "*.safetensors", is_weights=True)
        if not files:
            raise ModelError(f"{directory} lacks any *.safetensors file.")
        return files
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{directory / _INDEX} is not an index of safetensors files.")
    found = {name: find_model_file(directory, name, is_weights=True) for name in sorted(set(weight_map.values()))}
    missing = [repr(name[:100]) for name, path in found.items() if path is None][:_MAX_NAMED]
    if missing or not found:
        raise ModelError(f"{directory} lacks {', '.join(missing) or 'any file named by its index'}.")
    return [path for path in found.values() if path is not None]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file: {one_line(error)}.") from error
