"""Verification: samples a token at the place of each draft, one place after another, until a draft differs from its sample.

Called by runners after a forward pass that has computed the drafts, on the compute thread. Each place is sampled as a separate
step would sample it: the tokens before it are known by then, and with them position, penalties and masks. So the tokens are
exactly those of a run without drafts, for all parameters. For drafts without probabilities, this accepts as many drafts as
rejection sampling (Leviathan et al. 2023).
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints

T = TypeVar("T")
SamplePlace = Callable[[Ints, int], tuple[T, Ints, Ints]]
"""Function (rows, place) -> (sampler's result, rows that were sampled, their tokens). After the first place, rows that fail are
left out: their requests fail in the next step."""


def verify(batch: InputBatch, slots: Ints, sample: SamplePlace[T]) -> list[tuple[Ints, T]]:
    """Sample tokens for the requests in `slots` [R] and append them to the batch; return (rows, samples) for each place."""
    found: list[tuple[Ints, T]] = []
    rows: Ints = np.arange(len(slots))
    while len(rows):
        place = len(found)
        sampled, rows, tokens = sample(rows, place)
        owners = slots[rows]
        found.append((rows, sampled))
        right = _rows_with_right_drafts(batch, owners, place, tokens)
        batch.append_sampled(owners, tokens)
        rows = rows[right]
    return found


def _rows_with_right_drafts(batch: InputBatch, slots: Ints, place: int, tokens: Ints) -> Ints:
    """Return the rows of `slots` whose draft at this place equals the sampled token."""
    rows = np.flatnonzero(batch.num_drafts[slots] > place)
    if not len(rows):
        return rows
    owners = slots[rows]
    right: Ints = rows[batch.token_ids[owners, batch.num_tokens[owners]] == tokens[rows]]
    return right
