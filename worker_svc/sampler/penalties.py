"""Penalties: repetition (prompt and output), frequency and presence (output) lower the logits of tokens seen before.

The state is sparse: each penalised request has its distinct ids and their counts, updated from the input batch when the request
samples; a step changes only the logits of these ids. All requests are updated and penalised at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest
from tetrad.worker_svc.sampler.processors import PerSlot

_FIRST_WIDTH = 256
_UNSEEN = -1


def penalties(request: NewRequest) -> tuple[float, float, float] | None:
    """Return the repetition, frequency and presence penalties of a request; None if it has no penalty."""
    sampling = request.sampling
    strengths = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    return None if strengths == (1.0, 0.0, 0.0) else strengths


class _Rows(NamedTuple):
    """Penalised rows of a step, and their lines in _Seen."""

    rows: Ints
    lines: Ints


class Penalties:
    """The LogitsProcessor of penalties; it changes all penalised rows of a step at once.

    Args:
        vocab_size: number of columns of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._rows: PerSlot[int, _Rows] = PerSlot(self._open, lambda rows, lines: _Rows(rows, np.array(lines, np.int64)))
        self._seen = _Seen(vocab_size)

    def add(self, slot: int, request: NewRequest) -> None:
        """Start counting tokens if the request has a penalty."""
        self._rows.add(slot, request)

    def remove(self, slot: int) -> None:
        """Stop counting for the slot."""
        line = self._rows.remove(slot)
        if line is not None:
            self._seen.close(line)

    def _open(self, request: NewRequest) -> int | None:
        strengths = penalties(request)
        if strengths is None:
            return None
        ids, num_prompt_ids, embeds = request.token_ids, request.num_prompt_tokens, request.prompt_embeds
        if embeds is not None:  # positions with embeddings have no meaningful ids
            ids, num_prompt_ids = np.delete(ids, embeds.positions), num_prompt_ids - len(embeds.positions)
        return self._seen.open(ids, num_prompt_ids, len(request.token_ids), strengths)

    def concerns(self, slots: Ints) -> bool:
        """Return whether any row has a penalty."""
        return self._rows.of(slots) is not None

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> None:
        """Lower the logits of seen ids, by repetition, then frequency, then presence."""
        found = self._rows.of(slots)
        if found is None:
            return
        self._seen.catch_up(found.lines, slots[found.rows], batch)
        which, ids, counts, strengths = self._seen.of(found.lines)
        index = torch.from_numpy(found.rows[which]), torch.from_numpy(ids)
        count, (repetition, frequency, presence) = torch.from_numpy(counts), torch.from_numpy(strengths).unbind(1)
        values = logits[index]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[index] = values - frequency * count - presence * (count > 0)


class _Seen:
    """Distinct tokens of penalised requests, one line per request, in order of appearance, with their counts in the output.

    Lines of ended requests are reused; their number is about the largest number of penalised requests at once.
    """

    def __init__(self, vocab_size: int) -> None:
        self._strengths: Floats = np.zeros((0, 3), np.float32)
        self._num_ids: Ints = np.zeros(0, np.int64)
        self._num_tokens: Ints = np.zeros(0, np.int64)
        self._ids: Ints = np.zeros((0, _FIRST_WIDTH), np.int64)
        self._counts: Floats = np.zeros((0, _FIRST_WIDTH), np.float32)
        self._places: npt.NDArray[np.int32] = np.full((0, vocab_size), _UNSEEN, np.int32)  # index of each id in its line
        self._free: list[int] = []

    def open(self, token_ids: Ints, num_prompt_ids: int, num_tokens: int, strengths: tuple[float, float, float]) -> int:
        """Return a line with the counts of a request's tokens.

        Args:
            token_ids: the ids of the prompt, then those of the output.
            num_prompt_ids: number of ids of the prompt.
            num_tokens: number of the request's tokens, positions with embeddings included.
            strengths: the three penalties.
        """
        if not self._free:
            self._add_lines()
        line = self._free.pop()
        ids, places = np.unique(token_ids, return_inverse=True)
        self._widen(len(ids))
        self._ids[line, : len(ids)] = ids
        self._counts[line, : len(ids)] = np.bincount(places[num_prompt_ids:], minlength=len(ids))
        self._places[line] = _UNSEEN
        self._places[line, ids] = np.arange(len(ids))
        self._num_ids[line], self._num_tokens[line] = len(ids), num_tokens
        self._strengths[line] = strengths
        return line

    def close(self, line: int) -> None:
        """Make a line free for another request."""
        self._free.append(line)

    def catch_up(self, lines: Ints, slots: Ints, batch: InputBatch) -> None:
        """Count the tokens that the requests in `slots` got since the last call, one token per request at a time."""
        while True:
            is_behind = self._num_tokens[lines] < batch.num_tokens[slots]
            if not is_behind.any():
                return
            lines, slots = lines[is_behind], slots[is_behind]
            self._take(lines, batch.token_ids[slots, self._num_tokens[lines]])

    def of(self, lines: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """Return n ids of these lines: for each, the index of its line in `lines`, the id, its count and strengths [n, 3]."""
        numbers = self._num_ids[lines]
        width = int(numbers.max())
        which, places = np.nonzero(np.arange(width) < numbers[:, None])
        owners = lines[which]
        return which, self._ids[owners, places], self._counts[owners, places], self._strengths[owners]

    def _take(self, lines: Ints, token_ids: npt.NDArray[np.int32]) -> None:
        """Count one generated token in each line."""
        self._widen(int(self._num_ids[lines].max()) + 1)
        is_new = self._places[lines, token_ids] == _UNSEEN
        new_lines, new_ids = lines[is_new], token_ids[is_new]
        places = self._num_ids[new_lines]
        self._places[new_lines, new_ids] = places
        self._ids[new_lines, places] = new_ids
        self._counts[new_lines, places] = 0
        self._num_ids[new_lines] += 1
        self._counts[lines, self._places[lines, token_ids]] += 1
        self._num_tokens[lines] += 1

    def _add_lines(self) -> None:
        old = len(self._num_ids)
        more = max(old, 1)
        self._strengths = np.pad(self._strengths, ((0, more), (0, 0)))
        self._num_ids = np.pad(self._num_ids, (0, more))
        self._num_tokens = np.pad(self._num_tokens, (0, more))
        self._ids = np.pad(self._ids, ((0, more), (0, 0)))
        self._counts = np.pad(self._counts, ((0, more), (0, 0)))
        self._places = np.pad(self._places, ((0, more), (0, 0)))
        self._free += range(old, old + more)

    def _widen(self, num_ids: int) -> None:
        missing = num_ids - self._ids.shape[1]
        if missing > 0:
            more = max(missing, self._ids.shape[1])
            self._ids = np.pad(self._ids, ((0, 0), (0, more)))
            self._counts = np.pad(self._counts, ((0, 0), (0, more)))
