"""Logprobs on the device: gathered from the raw logits for the rows with logprobs, grouped by width."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, LogprobRows, NewRequest, SamplingSpec
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.sampler.logprobs import WHOLE_VOCABULARY, asked_logprobs, by_width
from tetrad.worker_svc.sampler.processors import PerSlot

TENSORS_A_GROUP = 3


class AskedGroup(NamedTuple):
    """Rows of a step that want candidates of one width: the `num_top` most likely ones, or exactly `ids`."""

    rows: Ints  # [n]
    rows_on_device: torch.Tensor  # [n] int64
    num_top: int
    ids: torch.Tensor | None  # [n, width - 1] int32


class DeviceLogprobs:
    """A SlotListener that gathers the log-probabilities of sampled tokens for the requests with logprobs.

    Args:
        accelerator: where the logits are.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._asked: PerSlot[SamplingSpec, Sequence[AskedGroup]] = PerSlot(asked_logprobs, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Remember a request that asks."""
        self._asked.add(slot, request)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._asked.remove(slot)

    def asked(self, slots: Ints) -> Sequence[AskedGroup]:
        """Return which rows of a step ask."""
        return self._asked.of(slots) or ()

    def _uploaded(self, rows: Ints, requests: Sequence[SamplingSpec]) -> Sequence[AskedGroup]:
        found = []
        for group in by_width(rows, requests).groups:
            ids = np.empty((len(group.rows), 0), np.int64) if group.ids is None else group.ids
            uploaded = self._accelerator.upload(np.concatenate([group.rows[:, None], ids], 1))
            listed = None if group.ids is None else uploaded[:, 1:].to(torch.int32)
            found.append(AskedGroup(group.rows, uploaded[:, 0].contiguous(), group.num_top, listed))
        return found


def gather_group(raw: torch.Tensor, token_ids: torch.Tensor, group: AskedGroup) -> list[torch.Tensor]:
    """Return the ids [n, W] int32 of a group's rows, their log-probabilities [n, W] float32 and the first ids' ranks [n] int32.

    Args:
        raw: [R, V] logits, before anything has changed them.
        token_ids: [R] int32, sampled.
        group: of the step's rows.
    """
    if len(group.rows) < len(raw):
        raw, token_ids = raw.index_select(0, group.rows_on_device), token_ids.index_select(0, group.rows_on_device)
    return gather_candidates(raw, token_ids, group.num_top, group.ids)


def gather_candidates(
    raw: torch.Tensor, token_ids: torch.Tensor, num_top: int, ids: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The same for all rows of raw [n, V]: the token first, then `ids` [n, W - 1], or else the `num_top` most likely ones."""
    if ids is None:
        num_top = raw.shape[1] if num_top == WHOLE_VOCABULARY else min(num_top, raw.shape[1])
        ids = raw.topk(num_top).indices.to(torch.int32)
    chosen = torch.cat([token_ids[:, None], ids], 1)
    return [chosen, *gather_logprobs(raw, chosen)]


def read_group(arrays: Sequence[np.ndarray]) -> LogprobRows:
    """Return the results of gather_group, from the host's copies of its tensors."""
    ids, logprobs, ranks = arrays
    return LogprobRows(ids.astype(np.uint32), logprobs, ranks.astype(np.uint32))
