"""Logit bias: adds values to the logits of chosen ids."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest
from tetrad.worker_svc.sampler.processors import PerSlot, scatter_index


def logit_bias(request: NewRequest) -> tuple[Ints, Floats] | None:
    """Return a request's biased ids, all different, and the values to add; None if it has no bias."""
    bias = request.sampling.logit_bias
    return (np.array(list(bias.keys()), np.int64), np.array(list(bias.values()), np.float32)) if bias else None


class _Biases(NamedTuple):
    """The index (rows, ids) of all biased logits, all different, and the values to add."""

    places: tuple[torch.Tensor, torch.Tensor]
    values: torch.Tensor


class LogitBias:
    """The LogitsProcessor of logit_bias; it changes all biased rows of a step at once."""

    def __init__(self) -> None:
        self._biases: PerSlot[tuple[Ints, Floats], _Biases] = PerSlot(logit_bias, _flatten)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request's ids and values."""
        self._biases.add(slot, request)

    def remove(self, slot: int) -> None:
        """Delete the slot's bias."""
        self._biases.remove(slot)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has a bias."""
        return self._biases.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:  # noqa: ARG002 - one signature
        """Add the values to the biased logits."""
        biases = self._biases.of(slots)
        if biases is not None:
            logits[biases.places] += biases.values


def _flatten(rows: Ints, biases: Sequence[tuple[Ints, Floats]]) -> _Biases:
    values = np.concatenate([values for _, values in biases])
    return _Biases(scatter_index(rows, [ids for ids, _ in biases]), torch.from_numpy(values))
