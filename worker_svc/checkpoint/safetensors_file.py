"""Safetensors file: reads tensors from a mapped file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tetrad.services.errors import ModelError, one_line


class SafetensorsFile:
    """A TensorFile in safetensors' format; raises ModelError if the file is not complete."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        try:
            self._file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a whole safetensors file: {one_line(error)}.") from error

    def names(self) -> Iterable[str]:
        """See TensorFile."""
        names: list[str] = self._file.keys()
        return names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which the file's header has."""
        return tuple(self._file.get_slice(name).get_shape())

    def get(self, name: str) -> torch.Tensor:
        """See TensorFile."""
        try:
            stored: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._name}: tensor {name} cannot be read: {one_line(error)}.") from error
        return stored
