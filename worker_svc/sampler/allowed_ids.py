"""Allowed ids: masks all ids that are not in a request's list."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot, scatter_index


def allowed_ids(request: NewRequest) -> Ints | None:
    """Return the ids that a request may sample; None if all are allowed."""
    ids = request.sampling.allowed_token_ids
    return np.array(ids, np.int64) if ids else None


class _Lists(NamedTuple):
    """Rows that have a list, and the index (rows, ids) of all allowed logits."""

    rows: torch.Tensor
    places: tuple[torch.Tensor, torch.Tensor]


class AllowedIds:
    """The LogitsProcessor of allowed_token_ids."""

    def __init__(self) -> None:
        self._lists: PerSlot[Ints, _Lists] = PerSlot(allowed_ids, _flatten)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's list."""
        self._lists.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's list."""
        self._lists.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has a list."""
        return self._lists.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:  # noqa: ARG002 - one signature
        """Mask the ids that are not allowed."""
        lists = self._lists.of(slots)
        if lists is not None:
            kept = logits[lists.places]
            logits.index_fill_(0, lists.rows, MASKED)
            logits[lists.places] = kept


def _flatten(rows: Ints, lists: Sequence[Ints]) -> _Lists:
    return _Lists(torch.from_numpy(rows), scatter_index(rows, lists))
