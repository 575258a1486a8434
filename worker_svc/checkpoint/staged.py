"""Staged source: returns the tensors of a pipeline stage, whose layers are numbered from 0.

Only the stage's pages of a mapped file are read. The first stage also has the tensors that belong to no layer, except those
of the output layer if the last stage has it.
"""

import re

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.model_facts.stages import OutputEnd

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""Pattern of a number in the name of a file's tensor; the first one is the number of its layer."""
_OUTPUT = ("model.norm.weight", "model.norm.bias", "lm_head.weight", "lm_head.bias")


class StagedSource(WrappedSource):
    """A WeightSource of one stage's part of another source with canonical names.

    Args:
        source: the tensors of the whole model.
        layers: the layers of the stage.
        num_layers: the model's number of layers.
        output: the stage with the output layer.
    """

    def __init__(self, source: WeightSource, layers: range, num_layers: int, output: OutputEnd = "first") -> None:
        super().__init__(source)
        self._layers, self._num_layers, self._output = layers, num_layers, output

    @property
    def total_bytes(self) -> int:
        """The approximate number of bytes that this stage reads."""
        return self._source.total_bytes * len(self._layers) // self._num_layers

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this name."""
        return self._source.has(self._in_model(name))

    def unread(self) -> list[str]:
        """Return the names of this stage's tensors of which no part has been loaded."""
        unread = self._unread()
        if unread and self._output == "last":
            for name in filter(self._source.has, _OUTPUT):
                _note_read(self._source, name)
            unread = self._unread()
        return unread

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return a tensor in float32 and its bytes as stored."""
        return self._source.load(self._in_model(name))

    def load_stored(self, name: str) -> torch.Tensor:
        """Return a tensor in its stored type."""
        return self._source.load_stored(self._in_model(name))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return a matrix as stored and its size in bytes; None if it is in floats."""
        return self._source.load_quantized(self._in_model(name))

    def whole_rows(self, name: str) -> tuple[torch.Tensor, slice] | None:
        """See WrappedSource."""
        return super().whole_rows(self._in_model(name))

    def _unread(self) -> list[str]:
        return [name for name in self._source.unread() if not self._is_elsewhere(name)]

    def _in_model(self, name: str) -> str:
        return _LAYER.sub(lambda found: str(self._layers.start + int(found.group())), name)

    def _is_elsewhere(self, stored_name: str) -> bool:
        """Return whether a tensor of the files belongs to another stage; tensors of no layer belong to the first."""
        found = _NUMBER.search(stored_name)
        number = int(found.group()) if found else self._num_layers
        return number not in self._layers if number < self._num_layers else self._layers.start > 0


def _note_read(source: WeightSource, name: str) -> None:
    """Take a tensor of another stage from the files, which only maps it, so that it counts as read."""
    if source.load_quantized(name) is None:
        source.load_stored(name)
