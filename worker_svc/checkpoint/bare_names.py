"""Bare names: a decoder's files without "model." before the names, as transformers writes a model that has no output layer."""

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource

_PREFIX = "model."


class BareNames(WrappedSource):
    """A WeightSource that has the tensors of another one under names with "model.".

    Args:
        source: the files.
    """

    def has(self, name: str) -> bool:
        """Return whether the files have this tensor."""
        return self._source.has(name.removeprefix(_PREFIX))

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """See WeightSource."""
        return self._source.load(name.removeprefix(_PREFIX))

    def load_stored(self, name: str) -> torch.Tensor:
        """See WeightSource."""
        return self._source.load_stored(name.removeprefix(_PREFIX))

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """See WeightSource."""
        return self._source.load_quantized(name.removeprefix(_PREFIX))


def with_prefix(source: WeightSource) -> WeightSource:
    """Return a source of a decoder whose names have "model.", whether or not the files' names have it."""
    return BareNames(source) if source.has("embed_tokens.weight") else source
