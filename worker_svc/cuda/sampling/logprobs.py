"""Logprobs on the device: gathers log-probabilities from a step's scores, for the rows with logprobs, grouped by width."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest, SamplingSpec
from tetrad.worker_svc.core.result import LogprobRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.kernels.logprobs import gather_logprobs
from tetrad.worker_svc.sampler.logprobs import WHOLE_VOCABULARY, asked_logprobs, by_width
from tetrad.worker_svc.sampler.processors import PerSlot

TENSORS_A_GROUP = 3


class AskedGroup(NamedTuple):
    """Rows of a step with the same number of candidates: the `num_top` most likely tokens, or exactly `ids`."""

    rows: Ints  # [n]
    rows_on_device: torch.Tensor  # [n] int64
    num_top: int
    ids: torch.Tensor | None  # [n, width - 1] int32


class DeviceLogprobs:
    """A SlotListener that gathers the log-probabilities of sampled tokens for the requests with logprobs.

    Args:
        accelerator: the device with the logits.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._asked: PerSlot[SamplingSpec, Sequence[AskedGroup]] = PerSlot(asked_logprobs, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request if it has logprobs."""
        self._asked.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's request."""
        self._asked.remove(slot)

    def asked(self, slots: Ints) -> Sequence[AskedGroup]:
        """Return the rows of a step with logprobs, grouped by width."""
        return self._asked.of(slots) or ()

    def _uploaded(self, rows: Ints, requests: Sequence[SamplingSpec]) -> Sequence[AskedGroup]:
        found = []
        for group in by_width(rows, requests).groups:
            ids = np.empty((len(group.rows), 0), np.int64) if group.ids is None else group.ids
            uploaded = self._accelerator.upload(np.concatenate([group.rows[:, None], ids], 1))
            listed = None if group.ids is None else uploaded[:, 1:].to(torch.int32)
            found.append(AskedGroup(group.rows, uploaded[:, 0].contiguous(), group.num_top, listed))
        return found


def gather_group(
    scores: torch.Tensor, token_ids: torch.Tensor, group: AskedGroup, *, has_logits: bool = False
) -> list[torch.Tensor]:
    """Return a group's candidate ids [n, W] int32, their log-probabilities [n, W] float32 and the sampled ids' ranks [n] int32.

    Args:
        scores: [R, V] logits, see scores.py.
        token_ids: [R] int32, the sampled tokens.
        group: a group of the step's rows.
        has_logits: whether logits take the place of log-probabilities.
    """
    if len(group.rows) < len(scores):
        scores, token_ids = scores.index_select(0, group.rows_on_device), token_ids.index_select(0, group.rows_on_device)
    return gather_candidates(scores, token_ids, group.num_top, group.ids, has_logits=has_logits)


def gather_candidates(
    scores: torch.Tensor, token_ids: torch.Tensor, num_top: int, ids: torch.Tensor | None = None, *, has_logits: bool = False
) -> list[torch.Tensor]:
    """Return the same for all rows of scores [n, V]; candidates: the token, then `ids` [n, W - 1] or the `num_top` largest."""
    if ids is None:
        num_top = scores.shape[1] if num_top == WHOLE_VOCABULARY else min(num_top, scores.shape[1])
        ids = scores.topk(num_top).indices.to(torch.int32)
    chosen = torch.cat([token_ids[:, None], ids], 1)
    return [chosen, *gather_logprobs(scores, chosen, has_logits=has_logits)]


def read_group(arrays: Sequence[np.ndarray]) -> LogprobRows:
    """Return the results of gather_group from the host's copies of its tensors."""
    ids, logprobs, ranks = arrays
    return LogprobRows(ids.astype(np.uint32), logprobs, ranks.astype(np.uint32))
