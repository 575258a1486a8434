"""Renamed source: a WeightSource whose names begin differently in the files."""

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource


class RenamedSource(WrappedSource):
    """A WeightSource over another one.

    Args:
        source: the files.
        beginnings: of names -> of those in the files; the first that fits counts.
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
