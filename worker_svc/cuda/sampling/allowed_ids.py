"""Allowed ids: masks all ids that are not in a request's list. The list becomes a bitmask, as for grammars."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.kernels.token_masks import apply_token_masks
from tetrad.worker_svc.sampler.allowed_ids import allowed_ids
from tetrad.worker_svc.sampler.processors import PerSlot


class DeviceAllowedIds:
    """The DeviceProcessor of allowed_token_ids.

    Args:
        accelerator: the device with the logits.
        vocab_size: number of columns of the logits.
    """

    def __init__(self, accelerator: Accelerator, vocab_size: int) -> None:
        self._accelerator, self._num_words = accelerator, -(-vocab_size // 32)
        self._masks: PerSlot[Ints, torch.Tensor] = PerSlot(allowed_ids, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's list."""
        self._masks.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's list."""
        self._masks.remove(slot)

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change that masks all ids that are not allowed."""
        masks = self._masks.of(rows.slots)
        return None if masks is None else partial(apply_token_masks, masks=masks)

    def _uploaded(self, rows: Ints, lists: Sequence[Ints]) -> torch.Tensor:
        is_allowed = np.zeros((len(rows), 32 * self._num_words), np.bool_)
        for mask, ids in zip(is_allowed, lists, strict=True):
            mask[ids] = True
        words = np.packbits(is_allowed, axis=1, bitorder="little").view(np.int32)
        return self._accelerator.upload(np.concatenate([rows[:, None].astype(np.int32), words], 1))
