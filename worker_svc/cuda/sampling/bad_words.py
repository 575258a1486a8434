"""Bad words: the last token of a forbidden sequence is masked while the output ends with the rest of it."""

from collections.abc import Sequence

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.parameters import SamplingParameters
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.kernels.bad_words import mask_bad_words
from tetrad.worker_svc.sampler.bad_words import Words, bad_words
from tetrad.worker_svc.sampler.processors import PerSlot


class DeviceBadWords:
    """The DeviceProcessor of bad_words.

    Args:
        accelerator: the device with the logits.
        state: the tokens that are compared with the words.
        parameters: the lengths of prompts.
    """

    def __init__(self, accelerator: Accelerator, state: DeviceState, parameters: SamplingParameters) -> None:
        self._accelerator, self._state, self._parameters = accelerator, state, parameters
        self._tables: PerSlot[Words, torch.Tensor] = PerSlot(bad_words, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's sequences."""
        self._tables.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's sequences."""
        self._tables.remove(slot)

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change that masks tokens which would complete a sequence."""
        words = self._tables.of(rows.slots)
        if words is None:
            return None
        return lambda logits: mask_bad_words(
            logits, self._state.token_ids, *rows.on_device, self._parameters.num_prompt_tokens, words
        )

    def _uploaded(self, rows: Ints, requests: Sequence[Words]) -> torch.Tensor:
        words = [(row, word) for row, each in zip(rows.tolist(), requests, strict=True) for word in each]
        table = np.zeros((len(words), 2 + max(len(word) for _, word in words)), np.int64)
        for line, (row, word) in zip(table, words, strict=True):
            line[: 2 + len(word)] = row, len(word), *word
        return self._accelerator.upload(table)
