"""Bad words: the last token of a forbidden sequence is masked while the output ends with the rest of it.

All words of all rows are compared with the ends of their outputs at once: one column contains the leading tokens of all words,
each with its distance from the end of the output.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot

Words = tuple[tuple[int, ...], ...]


def bad_words(request: NewRequest) -> Words | None:
    """Return the sequences that a request forbids; None if there are none."""
    return tuple(word for word in request.sampling.bad_words if word) or None


class _Table(NamedTuple):
    """W words of all rows, and the P leading tokens: all tokens of the words except the last ones."""

    rows: Ints  # [W]
    last_ids: Ints  # [W]
    lead_words: Ints  # [P], index of the word
    lead_rows: Ints  # [P]
    lead_ids: Ints  # [P]
    distances: Ints  # [P], 1 = the last token of the output


class BadWords:
    """The LogitsProcessor of bad_words; it compares only generated tokens, like vLLM."""

    def __init__(self) -> None:
        self._tables: PerSlot[Words, _Table] = PerSlot(bad_words, _flatten)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's sequences."""
        self._tables.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's sequences."""
        self._tables.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row forbids a sequence."""
        return self._tables.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Mask the tokens that would complete a sequence."""
        table = self._tables.of(slots)
        if table is None:
            return
        owners = slots[table.lead_rows]
        positions = batch.num_tokens[owners] - table.distances
        is_generated = positions >= batch.num_prompt_tokens[owners]
        is_there = is_generated & (batch.token_ids[owners, np.where(is_generated, positions, 0)] == table.lead_ids)
        is_masked = np.bincount(table.lead_words[~is_there], minlength=len(table.rows)) == 0
        logits[torch.from_numpy(table.rows[is_masked]), torch.from_numpy(table.last_ids[is_masked])] = MASKED


def _flatten(rows: Ints, requests: Sequence[Words]) -> _Table:
    words = [(row, word) for row, each in zip(rows.tolist(), requests, strict=True) for word in each]
    leads = [
        (index, row, token_id, len(word) - 1 - place)
        for index, (row, word) in enumerate(words)
        for place, token_id in enumerate(word[:-1])
    ]
    lead_words, lead_rows, lead_ids, distances = np.array(leads, np.int64).reshape(-1, 4).T
    return _Table(
        rows=np.array([row for row, _ in words], np.int64),
        last_ids=np.array([word[-1] for _, word in words], np.int64),
        lead_words=lead_words,
        lead_rows=lead_rows,
        lead_ids=lead_ids,
        distances=distances,
    )
