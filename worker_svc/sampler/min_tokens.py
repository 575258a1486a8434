"""Min tokens: masks EOS and stop ids until a request has generated min_tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot, scatter_index


def early_ends(request: NewRequest) -> tuple[int, Ints] | None:
    """Return the smallest length, in tokens, at which a request may end, and the ids that end it; None: no minimum."""
    ids = set(request.sampling.stop_token_ids)
    if request.eos_token_id is not None:
        ids.add(request.eos_token_id)
    if not request.sampling.min_tokens or not ids:
        return None
    return request.num_prompt_tokens + request.sampling.min_tokens, np.array(sorted(ids), np.int64)


class _Ends(NamedTuple):
    """Rows with a minimum length, these lengths, and the index (rows, ids) of the ids that end them."""

    rows: Ints  # [N]
    lengths: Ints  # [N]
    num_ids: Ints  # [N]
    places: tuple[torch.Tensor, torch.Tensor]


class MinTokens:
    """The LogitsProcessor of min_tokens."""

    def __init__(self) -> None:
        self._ends: PerSlot[tuple[int, Ints], _Ends] = PerSlot(early_ends, _flatten)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the length at which the request may end, and the ids that end it."""
        self._ends.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's values."""
        self._ends.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has a minimum length."""
        return self._ends.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Mask the ids that would end a request too early."""
        ends = self._ends.of(slots)
        if ends is None:
            return
        is_early = batch.num_tokens[slots[ends.rows]] < ends.lengths
        if is_early.any():
            chosen = torch.from_numpy(np.repeat(is_early, ends.num_ids))
            rows, ids = ends.places
            logits[rows[chosen], ids[chosen]] = MASKED


def _flatten(rows: Ints, ends: Sequence[tuple[int, Ints]]) -> _Ends:
    lengths = np.array([length for length, _ in ends])
    ids = [each for _, each in ends]
    return _Ends(rows, lengths, np.array([len(each) for each in ids]), scatter_index(rows, ids))
