"""Bare names: reads files whose names lack "model.", as transformers writes a decoder without an output layer."""

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource

_PREFIX = "model."


class BareNames(WrappedSource):
    """A WeightSource with the tensors of another source, under names with "model.".

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
    """Return a source whose names have "model.", whether or not the names in the files have it."""
    return BareNames(source) if source.has("embed_tokens.weight") else source
