"""Bad words: the last token of a forbidden sequence is masked while the output ends with the rest of it."""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import NewRequest
from tetrad.worker_svc.sampler.processors import MASKED, rows_of


class BadWords:
    """See LogitsProcessor; looks at generated tokens only, as vLLM does."""

    def __init__(self) -> None:
        self._words: dict[int, tuple[tuple[int, ...], ...]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Keep the request's sequences."""
        if request.sampling.bad_words:
            self._words[slot] = tuple(word for word in request.sampling.bad_words if word)

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._words.pop(slot, None)

    def apply(self, logits: torch.Tensor, slots: Sequence[int], batch: InputBatch) -> None:
        """Mask the tokens that would complete a sequence."""
        for row, slot in rows_of(self._words, slots):
            prompt, end = int(batch.num_prompt_tokens[slot]), int(batch.num_tokens[slot])
            longest = max(map(len, self._words[slot]), default=1) - 1
            tail = tuple(batch.token_ids[slot, max(prompt, end - longest) : end].tolist())
            for *prefix, last in self._words[slot]:
                if tail[len(tail) - len(prefix) :] == tuple(prefix) and len(prefix) <= len(tail):
                    logits[row, last] = MASKED
