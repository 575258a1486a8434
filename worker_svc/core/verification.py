"""Verification: samples a token in the place of each draft in turn, as long as the drafts equal the sampled tokens.

Called by runners behind a forward pass that has computed the drafts, on the compute thread. Each place is sampled as a step of
its own would sample it: the tokens before it are known by then, and with them position, penalties and masks. So the tokens are
exactly those of a run without drafts, for all parameters. For drafts without probabilities that accepts as often as rejection
sampling (Leviathan et al. 2023).
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints

T = TypeVar("T")
SamplePlace = Callable[[Ints, int], tuple[T, Ints, Ints]]
"""(rows, place) -> what is sampled for rows in a place, which of them that is, and their tokens. Behind the first place, rows
that fail are left out: their requests fail in the next step."""


def verify(batch: InputBatch, slots: Ints, sample: SamplePlace[T]) -> list[tuple[Ints, T]]:
    """Sample for the requests in `slots` [R] and keep the tokens in the batch; return (rows, their samples) of each place."""
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
    """Return the rows of `slots` whose draft in this place, behind the known tokens, is the token that was sampled there."""
    rows = np.flatnonzero(batch.num_drafts[slots] > place)
    if not len(rows):
        return rows
    owners = slots[rows]
    right: Ints = rows[batch.token_ids[owners, batch.num_tokens[owners]] == tokens[rows]]
    return right
