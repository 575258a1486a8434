"""Renamed source: replaces the beginnings of tensor names by those in the files."""

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource


class RenamedSource(WrappedSource):
    """A WeightSource with the tensors of another source, under other names.

    Args:
        source: the files.
        beginnings: pairs (beginning of a name, beginning of the name in the files); the first match applies.
    """

    def __init__(self, source: WeightSource, beginnings: tuple[tuple[str, str], ...]) -> None:
        super().__init__(source)
        self._beginnings = beginnings

    def has(self, name: str) -> bool:
        """See WeightSource."""
        return self._source.has(self._name(name))

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """See WeightSource."""
        return self._source.load(self._name(name))

    def load_stored(self, name: str) -> torch.Tensor:
        """See WeightSource."""
        return self._source.load_stored(self._name(name))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """See WeightSource."""
        return self._source.load_quantized(self._name(name))

    def _name(self, name: str) -> str:
        for beginning, stored in self._beginnings:
            if name.startswith(beginning):
                return stored + name.removeprefix(beginning)
        return name
