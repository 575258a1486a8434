"""Simulated log-probabilities: synthetic values in the requested shapes.

Called by the simulated device, on the compute thread. The first candidate is the token itself; the ids after it follow, each
less likely than the one before.
"""

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.core.plan import Ints, NewRequest, SamplingSpec
from tetrad.worker_svc.core.result import LogprobRows, PromptLogprobs, PromptScores, SampledLogprobs


class SimLogprobs:
    """A SlotListener that keeps the requests with log-probabilities, and computes these.

    Args:
        vocab_size: the model's vocabulary size.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sampled: dict[int, int] = {}  # slot -> number of candidates besides the token itself
        self._prompts: dict[int, tuple[Ints, int]] = {}  # slot -> (tokens of the prompt, same number)
        self._scored: dict[int, Ints] = {}  # slot -> score ids [rows, W]

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the log-probabilities that the request asks for."""
        sampling = request.sampling
        if sampling.num_logprobs is not None or sampling.logprob_token_ids:
            self._sampled[slot] = self._num_candidates(sampling)
        has_output = len(request.token_ids) > request.num_prompt_tokens
        if sampling.num_prompt_logprobs is not None and request.num_prompt_tokens > 1 and not has_output:
            self._prompts[slot] = request.token_ids, self._or_all(sampling.num_prompt_logprobs)

        if sampling.score_ids is not None and not has_output:
            self._scored[slot] = sampling.score_ids.rows(request.num_prompt_tokens)

    def remove(self, slot: int) -> None:
        """Delete the slot's state."""
        self._scored.pop(slot, None)
        self._sampled.pop(slot, None)
        self._prompts.pop(slot, None)

    def of_tokens(self, slots: Ints, handles: npt.NDArray[np.uint32], tokens: Ints) -> list[SampledLogprobs]:
        """Return the log-probabilities of the tokens [R] of the requests in slots [R], grouped by number of candidates."""
        if not self._sampled:
            return []
        numbers = np.array([self._sampled.get(slot, -1) for slot in slots.tolist()], np.int64)
        groups = [(int(number), numbers == number) for number in np.unique(numbers[numbers >= 0])]
        return [SampledLogprobs(handles[rows], self._made_up(tokens[rows], number)) for number, rows in groups]

    def of_prompts(self, slots: Ints, handles: npt.NDArray[np.uint32]) -> list[PromptLogprobs]:
        """Return the prompt logprobs of the requests that get their first token."""
        if not self._prompts:
            return []
        through = [
            (slot, handle) for slot, handle in zip(slots.tolist(), handles.tolist(), strict=True) if slot in self._prompts
        ]
        return [PromptLogprobs(handle, 1, self._of_prompt(*self._prompts.pop(slot))) for slot, handle in through]

    def scores_of_prompts(self, slots: Ints, handles: npt.NDArray[np.uint32]) -> list[PromptScores]:
        """Return the scores of the requests that get their first token: the id's tenth below 0, -inf for no id."""
        if not self._scored:
            return []
        through = [pair for pair in zip(slots.tolist(), handles.tolist(), strict=True) if pair[0] in self._scored]
        found = [(handle, self._scored.pop(slot)) for slot, handle in through]
        return [PromptScores(handle, np.where(ids < 0, -np.inf, ids / -10.0).astype(np.float32)) for handle, ids in found]

    def _of_prompt(self, token_ids: Ints, number: int) -> LogprobRows:
        return self._made_up(token_ids[1:], number)

    def _made_up(self, tokens: Ints, number: int) -> LogprobRows:
        ids = (tokens[:, None] + np.arange(number + 1)) % self._vocab_size
        values = np.broadcast_to(-1.0 - np.arange(number + 1, dtype=np.float32), ids.shape)
        return LogprobRows(ids.astype(np.uint32), values.astype(np.float32), np.ones(len(ids), np.uint32))

    def _num_candidates(self, sampling: SamplingSpec) -> int:
        return len(sampling.logprob_token_ids) or self._or_all(sampling.num_logprobs or 0)

    def _or_all(self, number: int) -> int:
        return self._vocab_size if number < 0 else number
