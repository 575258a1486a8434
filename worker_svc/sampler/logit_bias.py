"""Logit bias: a value added to the logits of chosen ids."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest
from tetrad.worker_svc.sampler.processors import rows_of, scatter_index


class LogitBias:
    """See LogitsProcessor; all biased rows of a step are changed at once."""

    def __init__(self) -> None:
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Keep the request's ids and values."""
        bias = request.sampling.logit_bias
        if bias:
            self._bias[slot] = (torch.tensor(list(bias.keys())), torch.tensor(list(bias.values()), dtype=torch.float32))

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._bias.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:  # noqa: ARG002 - one signature
        """Add the values."""
        found = rows_of(self._bias, slots)
        if found:
            index = scatter_index([row for row, _ in found], [self._bias[slot][0] for _, slot in found])
            logits.index_put_(index, torch.cat([self._bias[slot][1] for _, slot in found]), accumulate=True)
