"""Min tokens: EOS and stop ids are masked until a request has generated enough."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, rows_of, scatter_index


class MinTokens:
    """See LogitsProcessor; forgets a request once it has enough tokens."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, torch.Tensor]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Keep the length at which the request may end, and the ids that end it."""
        ids = set(request.sampling.stop_token_ids)
        if request.eos_token_id is not None:
            ids.add(request.eos_token_id)
        if request.sampling.min_tokens and ids:
            self._waiting[slot] = (request.num_prompt_tokens + request.sampling.min_tokens, torch.tensor(sorted(ids)))

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._waiting.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:
        """Mask the ids that would end a request too early."""
        found = rows_of(self._waiting, slots)
        for _, slot in found:
            if batch.num_tokens[slot] >= self._waiting[slot][0]:
                del self._waiting[slot]
        found = [(row, slot) for row, slot in found if slot in self._waiting]
        if found:
            index = scatter_index([row for row, _ in found], [self._waiting[slot][1] for _, slot in found])
            logits.index_put_(index, torch.tensor(MASKED))
