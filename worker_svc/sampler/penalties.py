"""Penalties: repetition (prompt and output), frequency and presence (output) lower the logits of tokens seen before.

Sparse: per request the distinct ids it has seen and how often, caught up from the input batch when it samples; a step touches
those logits and no others.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import Floats, Ints, NewRequest, SamplingSpec
from tetrad.worker_svc.sampler.processors import rows_of


class _Seen:
    """Distinct tokens of one request, in order of appearance, with their counts in the output."""

    def __init__(self, sampling: SamplingSpec) -> None:
        self.strengths = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._index: dict[int, int] = {}
        self._num_seen = 0
        self._ids: Ints = np.zeros(256, np.int64)
        self._counts: Floats = np.zeros(256, np.float32)

    def catch_up(self, tokens: npt.NDArray[np.int32], num_prompt_tokens: int) -> None:
        """Take in the tokens since the last call."""
        for position, token in enumerate(tokens[self._num_seen :].tolist(), self._num_seen):
            index = self._index.setdefault(token, len(self._index))
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token
            self._counts[index] += position >= num_prompt_tokens
        self._num_seen = len(tokens)

    @property
    def ids(self) -> Ints:
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._index)]


class Penalties:
    """See LogitsProcessor; all penalised rows of a step are changed at once."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Start counting for a request that has a penalty."""
        sampling = request.sampling
        if sampling.repetition_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty:
            self._seen[slot] = _Seen(sampling)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._seen.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:
        """Lower what was seen, by repetition, then frequency, then presence."""
        found = rows_of(self._seen, slots)
        if not found:
            return
        for _, slot in found:
            tokens = batch.token_ids[slot, : batch.num_tokens[slot]]
            self._seen[slot].catch_up(tokens, int(batch.num_prompt_tokens[slot]))
        seen = [self._seen[slot] for _, slot in found]
        lengths = [len(item.ids) for item in seen]
        rows = torch.from_numpy(np.repeat([row for row, _ in found], lengths))
        ids = torch.from_numpy(np.concatenate([item.ids for item in seen]))
        counts = torch.from_numpy(np.concatenate([item.counts for item in seen]))
        strengths = np.repeat(np.array([item.strengths for item in seen], np.float32), lengths, axis=0)
        repetition, frequency, presence = torch.from_numpy(strengths).unbind(1)
        values = logits[rows, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[rows, ids] = values - frequency * counts - presence * (counts > 0)
