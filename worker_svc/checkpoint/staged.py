"""Staged source: the tensors of a stage of a pipeline, its layers counted from 0.

Of a mapped file only the stage's pages are read. The first stage has what belongs to no layer.
"""

import re

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""The first number in the name of a file's tensor is that of its layer."""


class StagedSource(WrappedSource):
    """A WeightSource over another one with canonical names.

    Args:
        source: of the whole model.
        layers: of the stage.
        num_layers: of the model.
    """

    def __init__(self, source: WeightSource, layers: range, num_layers: int) -> None:
        super().__init__(source)
        self._layers, self._num_layers = layers, num_layers

    @property
    def total_bytes(self) -> int:
        """About the bytes that this stage reads."""
        return self._source.total_bytes * len(self._layers) // self._num_layers

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return self._source.has(self._in_model(name))

    def unread(self) -> list[str]:
        """Return the tensors of this stage of which no part has been loaded."""
        return [name for name in self._source.unread() if not self._is_elsewhere(name)]

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return a tensor in float32 and its bytes as stored."""
        return self._source.load(self._in_model(name))

    def load_stored(self, name: str) -> torch.Tensor:
        """Return a tensor in the type it is stored in."""
        return self._source.load_stored(self._in_model(name))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return a matrix as it is stored and its bytes; None if it is in floats."""
        return self._source.load_quantized(self._in_model(name))

    def _in_model(self, name: str) -> str:
        return _LAYER.sub(lambda found: str(self._layers.start + int(found.group())), name)

    def _is_elsewhere(self, stored_name: str) -> bool:
        """Return whether a tensor of the files is another stage's; what belongs to no layer of the model is the first one's."""
        found = _NUMBER.search(stored_name)
        number = int(found.group()) if found else self._num_layers
        return number not in self._layers if number < self._num_layers else self._layers.start > 0
