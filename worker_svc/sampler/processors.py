"""Interface of the logits processors: one file each, applied only to the rows that need it.

A processor keeps its own state by slot. The sampler notifies it of added and removed requests, and it reads tokens from the
input batch. The data of its rows is kept flat, in arrays rebuilt only when the batch changes: a step runs no Python per row.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest

MASKED = float("-inf")

Entry = TypeVar("Entry")
Flat = TypeVar("Flat")


class LogitsProcessor(Protocol):
    """A component that changes logits before a token is chosen."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's parameters for this processor, if it has any."""

    def remove(self, slot: int) -> None:
        """Delete the slot's parameters; do nothing if it has none."""

    def concerns(self, slots: Ints) -> bool:
        """Return whether any of a step's rows, the requests in `slots`, has parameters for this processor."""

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Change logits [R, V] in place; row r is the request in slots[r]."""


class PerSlot(Generic[Entry, Flat]):
    """The parameters of some requests by slot, and a flat form for all rows of a step.

    Args:
        asked: returns the parameters of a request; None: it has none.
        flatten: function (rows that have parameters, their parameters) -> flat form.
    """

    def __init__(self, asked: Callable[[NewRequest], Entry | None], flatten: Callable[[Ints, Sequence[Entry]], Flat]) -> None:
        self._asked, self._flatten = asked, flatten
        self._entries: dict[int, Entry] = {}
        self._slots: Ints | None = None
        self._flat: Flat | None = None

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's parameters, if it has any."""
        entry = self._asked(request)
        if entry is not None:
            self._entries[slot] = entry
            self._slots = None

    def remove(self, slot: int) -> Entry | None:
        """Delete a slot's parameters and return them; None if it has none."""
        entry = self._entries.pop(slot, None)
        if entry is not None:
            self._slots = None
        return entry

    def of(self, slots: Ints) -> Flat | None:
        """Return the flat form of the parameters of a step's rows; None if no row has any."""
        if not self._entries:
            return None
        if self._slots is None or not np.array_equal(self._slots, slots):
            found = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._entries]
            rows = np.array([row for row, _ in found], np.int64)
            self._flat = self._flatten(rows, [self._entries[slot] for _, slot in found]) if found else None
            self._slots = slots.copy()
        return self._flat


def scatter_index(rows: Ints, ids: Sequence[Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pair of index tensors that addresses ids[i] in row rows[i]."""
    counts = [len(part) for part in ids]
    return torch.from_numpy(np.repeat(rows, counts)), torch.from_numpy(np.concatenate(ids))
