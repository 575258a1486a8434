"""Thinking budget: ends reasoning beyond its budget by forcing the ids of its end mark one by one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.parameters import SamplingParameters
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.kernels.thinking_budget import force_ends
from tetrad.worker_svc.sampler.processors import PerSlot
from tetrad.worker_svc.sampler.thinking_budget import Budget, thinking_budget


class _Entry(NamedTuple):
    budget: Budget
    num_prompt_tokens: int


class _Budgets(NamedTuple):
    """The budgets of a step's rows, and the positions of possible end marks: from `firsts` up to, not including, `lasts`."""

    table: torch.Tensor
    rows: Ints  # [M]
    firsts: Ints  # [M]
    lasts: Ints  # [M]


class DeviceThinkingBudget:
    """The DeviceProcessor of thinking budgets. It is the last processor, so that no other one masks the ids that it forces.

    Args:
        accelerator: the device with the logits.
        state: the tokens of the reasoning.
        parameters: the lengths of prompts.
    """

    def __init__(self, accelerator: Accelerator, state: DeviceState, parameters: SamplingParameters) -> None:
        self._accelerator, self._state, self._parameters = accelerator, state, parameters
        self._budgets: PerSlot[_Entry, _Budgets] = PerSlot(_entry, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's budget."""
        self._budgets.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's budget."""
        self._budgets.remove(slot)

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change that masks all ids but one in rows whose reasoning has to end; None if no row is long enough."""
        found = self._budgets.of(rows.slots)
        if found is None:
            return None
        positions = rows.positions[found.rows]
        if not ((positions >= found.firsts) & (positions < found.lasts)).any():
            return None
        return lambda logits: force_ends(
            logits, self._state.token_ids, *rows.on_device, self._parameters.num_prompt_tokens, found.table
        )

    def _uploaded(self, rows: Ints, entries: Sequence[_Entry]) -> _Budgets:
        budgets = [entry.budget for entry in entries]
        width = max(max(len(budget.start_ids), len(budget.end_ids)) for budget in budgets)
        table = np.zeros((len(rows), 4 + 2 * width), np.int64)
        for line, row, (start, end, num_tokens) in zip(table, rows.tolist(), budgets, strict=True):
            line[:4] = row, num_tokens, len(start), len(end)
            line[4 : 4 + len(start)] = start
            line[4 + width : 4 + width + len(end)] = end
        firsts = np.array([entry.num_prompt_tokens + entry.budget.num_tokens for entry in entries])
        lasts = firsts + np.array([len(budget.end_ids) for budget in budgets])
        return _Budgets(self._accelerator.upload(table), rows, firsts, lasts)


def _entry(request: NewRequest) -> _Entry | None:
    budget = thinking_budget(request)
    return None if budget is None else _Entry(budget, request.num_prompt_tokens)
