"""Allowed ids: everything but a request's list is masked."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, rows_of


class AllowedIds:
    """See LogitsProcessor; keeps one list of ids per slot that has one."""

    def __init__(self) -> None:
        self._ids: dict[int, torch.Tensor] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Keep the request's list."""
        if request.sampling.allowed_token_ids:
            self._ids[slot] = torch.tensor(request.sampling.allowed_token_ids)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._ids.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:  # noqa: ARG002 - one signature
        """Mask what is not allowed."""
        for row, slot in rows_of(self._ids, slots):
            kept = logits[row, self._ids[slot]]
            logits[row].fill_(MASKED)
            logits[row, self._ids[slot]] = kept
