"""Logit bias and min_tokens: adds values to chosen logits, and -inf to the ids that would end a request too early."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.kernels.biases import add_biases
from tetrad.worker_svc.sampler.logit_bias import logit_bias
from tetrad.worker_svc.sampler.min_tokens import early_ends
from tetrad.worker_svc.sampler.processors import MASKED, PerSlot

_ALWAYS = 2**62


class Bias(NamedTuple):
    """The bias of one request: distinct ids, the values added to their logits, and the first position without the bias."""

    ids: Ints
    values: Floats
    until: int


class _Entries(NamedTuple):
    table: torch.Tensor
    rows: Ints  # [M], rows that have a bias
    until: Ints  # [M]


class DeviceBiases:
    """The DeviceProcessor of biases.

    Args:
        accelerator: the device with the logits.
        bias: returns the bias of a request; None: the request has none.
    """

    def __init__(self, accelerator: Accelerator, bias: Callable[[NewRequest], Bias | None]) -> None:
        self._accelerator = accelerator
        self._entries: PerSlot[Bias, _Entries] = PerSlot(bias, self._uploaded)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's bias."""
        self._entries.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's bias."""
        self._entries.remove(slot)

    def change_for(self, rows: SamplingRows) -> LogitsChange | None:
        """Return the change that adds the values."""
        entries = self._entries.of(rows.slots)
        if entries is None or not (rows.positions[entries.rows] < entries.until).any():
            return None
        return partial(add_biases, positions=rows.on_device[1], entries=entries.table)

    def _uploaded(self, rows: Ints, biases: Sequence[Bias]) -> _Entries:
        counts = [len(bias.ids) for bias in biases]
        until = np.array([bias.until for bias in biases])
        table = np.stack(
            [
                np.repeat(rows, counts),
                np.concatenate([bias.ids for bias in biases]),
                np.repeat(until, counts),
                np.concatenate([bias.values for bias in biases]).astype(np.float64).view(np.int64),
            ],
            1,
        )
        return _Entries(self._accelerator.upload(table), rows, until)


def bias_of_request(request: NewRequest) -> Bias | None:
    """Return the request's logit_bias; None if it has none."""
    bias = logit_bias(request)
    return None if bias is None else Bias(*bias, _ALWAYS)


def bias_of_early_ends(request: NewRequest) -> Bias | None:
    """Return the bias that prevents a request from ending before min_tokens; None if it has no min_tokens."""
    ends = early_ends(request)
    if ends is None:
        return None
    length, ids = ends
    return Bias(ids, np.full(len(ids), MASKED, np.float32), length)
