"""What a logits processor is: one file each beside this one, applied only to the rows that asked for it.

A processor keeps its own state by slot. It is told of requests that come and go, and reads tokens from the input batch.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest

MASKED = float("-inf")


class LogitsProcessor(Protocol):
    """Changes logits before a token is chosen."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Remember what the request asks of this processor, if anything."""

    def remove(self, slot: int) -> None:
        """Forget a slot; one that asked for nothing is no error."""

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:
        """Change logits [R, V] in place; row r is the request in slots[r]."""


def rows_of(states: Mapping[int, object], slots: Sequence[int]) -> list[tuple[int, int]]:
    """Return (row, slot) of those slots that have a state."""
    return [(row, slot) for row, slot in enumerate(slots) if slot in states] if states else []


def scatter_index(rows: Sequence[int], ids: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pair of index tensors that addresses ids[i] in row rows[i]."""
    counts = torch.tensor([len(part) for part in ids])
    return torch.repeat_interleave(torch.tensor(rows), counts), torch.cat(list(ids))
