"""Wrapped source: the base class of weight sources that change the tensors of another source."""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.source import StoredMatrix, WeightSource


class WrappedSource:
    """A WeightSource with the tensors of another source. Derived classes change names, shapes or forms.

    Args:
        source: the files.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def config(self) -> Mapping[str, Any]:
        """See WeightSource."""
        return self._source.config

    @property
    def total_bytes(self) -> int:
        """See WeightSource."""
        return self._source.total_bytes

    @property
    def stored_type(self) -> str:
        """See WeightSource."""
        return self._source.stored_type

    def has(self, name: str) -> bool:
        """See WeightSource."""
        return self._source.has(name)

    def unread(self) -> list[str]:
        """See WeightSource."""
        return self._source.unread()

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """See WeightSource."""
        return self._source.load(name)

    def load_stored(self, name: str) -> torch.Tensor:
        """See WeightSource."""
        return self._source.load_stored(name)

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """See WeightSource."""
        return self._source.load_quantized(name)

    def whole_rows(self, name: str) -> tuple[torch.Tensor, slice] | None:
        """Return the whole rows of a matrix in its stored type, and the columns that this source has; None: it has all."""
        return self._source.whole_rows(name) if isinstance(self._source, WrappedSource) else None
