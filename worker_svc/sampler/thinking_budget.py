"""Thinking budget: ends reasoning beyond its budget by forcing the ids of its end mark one by one.

This is a pure function of a request's output, so preemption, recovery and steps in flight do not change the result: if an
output is inside its reasoning at the end of its budget, only the ids of the rest of the end mark can be sampled, until the mark
is complete. At other times a row costs one comparison per step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot


class Budget(NamedTuple):
    """A request's budget: the ids that open and end its reasoning, and the most output tokens before the end mark."""

    start_ids: Ints
    end_ids: Ints
    num_tokens: int


def thinking_budget(request: NewRequest) -> Budget | None:
    """Return a request's budget; None if its reasoning has no limit."""
    sampling = request.sampling
    if sampling.thinking_token_budget is None:
        return None
    start, end = (np.array(ids, np.int64) for ids in (sampling.thinking_start_ids, sampling.thinking_end_ids))
    return Budget(start, end, len(start) + sampling.thinking_token_budget)


class _Budgets(NamedTuple):
    """The budgets of rows, and the range of each end mark: output tokens `firsts` up to, not including, `lasts`."""

    rows: Ints  # [N]
    firsts: Ints  # [N]
    lasts: Ints  # [N]
    budgets: Sequence[Budget]


class ThinkingBudget:
    """The LogitsProcessor of thinking budgets. It is the last processor, so that no other one masks the ids that it forces."""

    def __init__(self) -> None:
        self._budgets: PerSlot[Budget, _Budgets] = PerSlot(thinking_budget, _flatten)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's budget, which begins after the ids that open the reasoning."""
        self._budgets.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's budget."""
        self._budgets.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has a budget."""
        return self._budgets.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Mask all ids but one in rows whose reasoning has to end."""
        found = self._budgets.of(slots)
        if found is None:
            return
        owners = slots[found.rows]
        lengths = batch.num_tokens[owners] - batch.num_prompt_tokens[owners]
        # The output of a row is examined only in the few steps in which an end mark may be forced.
        for place in np.flatnonzero((lengths >= found.firsts) & (lengths < found.lasts)).tolist():
            slot = owners[place]
            output = batch.token_ids[slot, batch.num_prompt_tokens[slot] : batch.num_tokens[slot]]
            forced = _forced_id(output, found.budgets[place])
            if forced is not None:
                row = int(found.rows[place])
                logits[row] = MASKED
                logits[row, forced] = 0.0


def _flatten(rows: Ints, budgets: Sequence[Budget]) -> _Budgets:
    firsts = np.array([budget.num_tokens for budget in budgets])
    return _Budgets(rows, firsts, firsts + np.array([len(budget.end_ids) for budget in budgets]), budgets)


def _forced_id(output: npt.NDArray[np.int32], budget: Budget) -> int | None:
    """Return the next id if it is forced: from the budget's end until the end mark is complete; None: any id may follow."""
    thoughts, end = output[: budget.num_tokens], budget.end_ids
    if not np.array_equal(thoughts[: len(budget.start_ids)], budget.start_ids) or _holds(thoughts, end):
        return None
    missing = end[_num_begun(thoughts, end) :]
    place = len(output) - len(thoughts)
    return int(missing[place]) if place < len(missing) else None


def _holds(output: npt.NDArray[np.int32], ids: Ints) -> bool:
    if len(output) < len(ids):
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(output, len(ids)) == ids).all(1).any())


def _num_begun(output: npt.NDArray[np.int32], ids: Ints) -> int:
    """Return the number of first `ids` that the output ends with: the model may have begun the end mark itself."""
    longest = min(len(output), len(ids) - 1)
    return next((number for number in range(longest, 0, -1) if np.array_equal(output[-number:], ids[:number])), 0)
