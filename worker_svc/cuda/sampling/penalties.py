"""Penalties: lower the logits of earlier tokens, including tokens that only the device has so far."""

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
from tetrad.worker_svc.kernels.penalties import apply_penalties, count_tokens
from tetrad.worker_svc.sampler.penalties import penalties
from tetrad.worker_svc.sampler.processors import PerSlot

Strengths = tuple[float, float, float]


class _Penalised(NamedTuple):
    table: torch.Tensor  # [M, 5], see count_tokens
    rows: Ints  # [M]


class DevicePenalties:
    """See DeviceProcessor.

    Args:
        accelerator: where the logits are.
        state: the tokens that are counted.
        parameters: where prompts end.
        vocab_size: ids are smaller.
    """

    def __init__(self, accelerator: Accelerator, state: DeviceState, parameters: SamplingParameters, vocab_size: int) -> None:
        self._accelerator, self._state, self._parameters = accelerator, state, parameters
        self._rows: PerSlot[tuple[int, Strengths], _Penalised] = PerSlot(self._open, self._uploaded)
        # Lines are kept when a request goes and used again; there are as many as requests were ever penalised at once.
        self._seen = torch.zeros((0, vocab_size), dtype=torch.int32, device=accelerator.device)
        self._num_counted = torch.zeros(0, dtype=torch.int32, device=accelerator.device)
        self._free: list[int] = []

    def add(self, slot: int, request: NewRequest) -> None:
        """Start counting for a request that has a penalty."""
        self._rows.add(slot, request)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        entry = self._rows.remove(slot)
        if entry is not None:
            self._free.append(entry[0])

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Count what is new, and lower what was seen."""
        penalised = self._rows.of(rows.slots)
        if penalised is None:
            return None

        def change(logits: torch.Tensor) -> None:
            if rows.has_drafts:
                self._apply_behind_drafts(logits, rows, penalised)
                return
            self._count(self._seen, self._num_counted, rows, penalised.table)
            apply_penalties(logits, self._seen, penalised.table)

        return change

    def _apply_behind_drafts(self, logits: torch.Tensor, rows: SamplingRows, penalised: _Penalised) -> None:
        """Count known tokens once for each request, then drafts, which may be wrong, in a copy of the line for each row."""
        first = self._accelerator.upload(np.flatnonzero(rows.places[penalised.rows] == 0))
        self._count(self._seen, self._num_counted, rows, penalised.table.index_select(0, first))
        lines = penalised.table[:, 1]
        seen, num_counted = self._seen.index_select(0, lines), self._num_counted.index_select(0, lines)
        own = penalised.table.clone()
        own[:, 1] = torch.arange(len(own), device=own.device)
        self._count(seen, num_counted, rows, own)
        apply_penalties(logits, seen, own)

    def _count(self, seen: torch.Tensor, num_counted: torch.Tensor, rows: SamplingRows, table: torch.Tensor) -> None:
        count_tokens(seen, num_counted, self._state.token_ids, *rows.on_device, self._parameters.num_prompt_tokens, table)

    def _open(self, request: NewRequest) -> tuple[int, Strengths] | None:
        """Return a line that has counted nothing, and the strengths; None if the request is not penalised."""
        strengths = penalties(request)
        if strengths is None:
            return None
        if not self._free:
            self._add_lines()
        line = self._free.pop()
        # Behind the steps that are under way and may still use it for the request before.
        self._seen[line].zero_()
        self._num_counted[line].zero_()
        return line, strengths

    def _add_lines(self) -> None:
        old = len(self._num_counted)
        more = max(old, 1)
        self._seen = torch.nn.functional.pad(self._seen, (0, 0, 0, more))
        self._num_counted = torch.nn.functional.pad(self._num_counted, (0, more))
        self._free += range(old, old + more)

    def _uploaded(self, rows: Ints, entries: Sequence[tuple[int, Strengths]]) -> _Penalised:
        lines = np.array([line for line, _ in entries])
        strengths = np.array([strengths for _, strengths in entries], np.float64).view(np.int64)
        return _Penalised(self._accelerator.upload(np.concatenate([np.stack([rows, lines], 1), strengths], 1)), rows)
