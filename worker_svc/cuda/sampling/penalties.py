"""Penalties: lower the logits of earlier tokens, including tokens that are not on the host yet."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest, PromptEmbeds
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
    """The DeviceProcessor of penalties.

    Args:
        accelerator: the device with the logits.
        state: the tokens that are counted.
        parameters: the lengths of prompts.
        vocab_size: number of columns of the logits.
    """

    def __init__(self, accelerator: Accelerator, state: DeviceState, parameters: SamplingParameters, vocab_size: int) -> None:
        self._accelerator, self._state, self._parameters = accelerator, state, parameters
        self._rows: PerSlot[tuple[int, Strengths], _Penalised] = PerSlot(self._open, self._uploaded)
        # Lines are reused after a request ends; their number is about the largest number of penalised requests at once.
        self._seen = torch.zeros((0, vocab_size), dtype=torch.int32, device=accelerator.device)
        self._num_counted = torch.zeros(0, dtype=torch.int32, device=accelerator.device)
        self._free: list[int] = []

    def add(self, slot: int, request: NewRequest) -> None:
        """Start counting tokens if the request has a penalty."""
        self._rows.add(slot, request)

    def remove(self, slot: int) -> None:
        """Stop counting for the slot, and free its line."""
        entry = self._rows.remove(slot)
        if entry is not None:
            self._free.append(entry[0])

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change that counts new tokens and lowers the logits of seen ones."""
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
        """Count known tokens once for each request; count drafts, which may be wrong, in a copy of the line for each row."""
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
        """Return an empty line of counts and the request's penalties; None if it has no penalties."""
        strengths = penalties(request)
        if strengths is None:
            return None
        if not self._free:
            self._add_lines()
        line = self._free.pop()
        # Queued after the steps in flight, which may still use the line for the previous request.
        self._seen[line].zero_()
        self._num_counted[line].zero_()
        if request.prompt_embeds is not None:
            self._count_prompt(line, request, request.prompt_embeds)
        return line, strengths

    def _count_prompt(self, line: int, request: NewRequest, embeds: PromptEmbeds) -> None:
        """Count a prompt's ids on the host; positions with embeddings have no meaningful ids."""
        ids = np.delete(request.token_ids[: request.num_prompt_tokens], embeds.positions)
        self._seen[line].index_fill_(0, self._accelerator.upload(np.unique(ids)), 1)
        self._num_counted[line].fill_(request.num_prompt_tokens)

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
