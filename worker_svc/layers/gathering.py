"""Gathering: keeps the hidden states that a prompt's pooled answer needs, chunk by chunk."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from tetrad.worker_svc.checkpoint.pooler_config import PoolingType


class Gathering(Protocol):
    """The hidden states of one prompt that its answer needs."""

    def wanted(self, num_rows: int, *, is_end: bool) -> slice:
        """Return the rows of a chunk that have to be passed to `add`; `is_end`: the chunk is the prompt's last."""

    def add(self, rows: torch.Tensor) -> None:
        """Gather rows [n, hidden] of the next chunk; the caller may change them afterwards."""

    def result(self) -> torch.Tensor:
        """Return the hidden states to pool: one row [hidden], or several [L, hidden]."""


class LastRow:
    """Gathers the hidden state of the last token."""

    def __init__(self) -> None:
        self._row = torch.empty(0)

    def wanted(self, num_rows: int, *, is_end: bool) -> slice:
        """See Gathering."""
        return slice(num_rows - 1, num_rows) if is_end else slice(0, 0)

    def add(self, rows: torch.Tensor) -> None:
        """See Gathering."""
        if len(rows):
            self._row = rows[-1].clone()

    def result(self) -> torch.Tensor:
        """See Gathering."""
        return self._row


class FirstRow:
    """Gathers the hidden state of the first token."""

    def __init__(self) -> None:
        self._row: torch.Tensor | None = None

    def wanted(self, num_rows: int, *, is_end: bool) -> slice:  # noqa: ARG002 - of the protocol
        """See Gathering."""
        return slice(0, 1) if self._row is None else slice(0, 0)

    def add(self, rows: torch.Tensor) -> None:
        """See Gathering."""
        if len(rows):
            self._row = rows[0].clone()

    def result(self) -> torch.Tensor:
        """See Gathering."""
        assert self._row is not None
        return self._row


class MeanRow:
    """Gathers the mean of all tokens' hidden states, summed in float64, so that chunking does not change the float32 result."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._count = 0

    def wanted(self, num_rows: int, *, is_end: bool) -> slice:  # noqa: ARG002 - of the protocol
        """See Gathering."""
        return slice(0, num_rows)

    def add(self, rows: torch.Tensor) -> None:
        """See Gathering."""
        added = rows.sum(0, dtype=torch.float64)
        self._sum = added if self._sum is None else self._sum + added
        self._count += len(rows)

    def result(self) -> torch.Tensor:
        """See Gathering."""
        assert self._sum is not None
        return (self._sum / self._count).float()


class AllRows:
    """Gathers the hidden states of all tokens."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []

    def wanted(self, num_rows: int, *, is_end: bool) -> slice:  # noqa: ARG002 - of the protocol
        """See Gathering."""
        return slice(0, num_rows)

    def add(self, rows: torch.Tensor) -> None:
        """See Gathering."""
        self._chunks.append(rows.clone())

    def result(self) -> torch.Tensor:
        """See Gathering; each row is returned only once."""
        chunks, self._chunks = self._chunks, []
        return torch.cat(chunks)


GATHERINGS: Mapping[PoolingType, Callable[[], Gathering]] = {"CLS": FirstRow, "LAST": LastRow, "MEAN": MeanRow}
