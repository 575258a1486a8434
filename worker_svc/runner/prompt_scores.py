"""Prompt scores: gathers log-probabilities of given ids at positions of a prompt, and returns them with its last chunk.

The teacher of a distillation asks for those of its student's candidates. Called by the model runner as prompt_logprobs.py is,
on the compute thread. A request that is preempted before its first output token is computed and gathered again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints, NewRequest
from tetrad.worker_svc.core.result import PromptScores
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.runner.prompt_logprobs import ROWS_AT_ONCE, LogitsOf


@dataclass(frozen=True, slots=True)
class ScoredChunk:
    """The tokens of a prompt in one step whose hidden states predict rows of score ids."""

    handle: int
    slot: int
    first: int  # index of its first token in the step's tokens
    ids: Ints  # [N, W]; -1: no id
    all_ids: Ints  # [rows, W], those of the whole prompt
    gathered: list[Floats]  # scores of the earlier chunks; those of this chunk are appended
    is_last: bool  # whether it has the prompt's last token

    def pieces(self) -> Iterator[tuple[slice, Ints]]:
        """Yield slices of the step's tokens, each small enough to compute logits at once, with the rows of ids."""
        for start in range(0, len(self.ids), ROWS_AT_ONCE):
            ids = self.ids[start : start + ROWS_AT_ONCE]
            yield slice(self.first + start, self.first + start + len(ids)), ids

    def finish(self) -> PromptScores | None:
        """Return the scores of the whole prompt; None before its end."""
        if not self.is_last:
            return None
        scores = np.concatenate(self.gathered)
        self.gathered.clear()
        return PromptScores(self.handle, np.where(self.all_ids < 0, np.float32(-np.inf), scores))


class AskedScores:
    """A SlotPart that keeps the requests with score ids."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, Ints]] = {}  # slot -> (position of the first row, ids [rows, W])
        self._gathered: dict[int, list[Floats]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request if it has score ids, unless it asks for times (token_times.py)."""
        asked = request.sampling.score_ids
        if asked is not None and asked.num_positions is None:
            self._asked[slot] = asked.start, asked.rows(request.num_prompt_tokens)
            self._gathered[slot] = []

    def remove(self, slot: int) -> None:
        """Delete the slot's state."""
        self._asked.pop(slot, None)
        self._gathered.pop(slot, None)

    def check(self, request: NewRequest) -> None:
        """Raise InvalidRequest for a request whose score ids do not fit its prompt."""
        asked = request.sampling.score_ids
        if asked is None:
            return
        num_tokens, given = request.num_prompt_tokens, len(asked.token_ids)
        num_rows = num_tokens - 1 - asked.start
        if num_rows < 1 or given not in (1, num_rows):
            text = f"prompt_score_ids has {given} rows from position {asked.start} of a prompt of {num_tokens} tokens."
            raise InvalidRequest(text, field="prompt_score_ids")

    def chunks(self, rows: StepRows, batch: InputBatch) -> list[ScoredChunk]:
        """Return the step's chunks of prompts whose requests have score ids, from the first position that is scored."""
        if not self._asked:
            return []
        asked = [(row, slot) for row, slot in enumerate(rows.slots.tolist()) if slot in self._asked]
        found = [self._chunk(rows, batch, row, slot) for row, slot in asked]
        return [each for each in found if each is not None]

    def _chunk(self, rows: StepRows, batch: InputBatch, row: int, slot: int) -> ScoredChunk | None:
        start, ids = self._asked[slot]
        begin, last = int(rows.num_computed[row]), int(batch.num_prompt_tokens[slot]) - 1
        end = begin + int(rows.num_scheduled[row])
        first = max(begin, start)
        if begin > last or end <= start:
            return None
        return ScoredChunk(
            handle=int(batch.handles[slot]),
            slot=slot,
            first=int(rows.first_token[row]) + first - begin,
            ids=ids[first - start : max(min(end, last), first) - start],
            all_ids=ids,
            gathered=self._gathered[slot],
            is_last=end > last,
        )


def collect_scores(
    chunks: Sequence[ScoredChunk], hidden: torch.Tensor, logits_of: LogitsOf, *, has_logits: bool
) -> list[PromptScores]:
    """Compute the chunks' scores from a step's hidden states [T, hidden], on the host; return those of complete prompts."""
    found = []
    for chunk in chunks:
        for piece, ids in chunk.pieces():
            logits = logits_of(hidden[piece], chunk.slot)
            values = logits if has_logits else logits.log_softmax(1)
            chunk.gathered.append(values.gather(1, torch.from_numpy(np.maximum(ids, 0))).numpy())
        found.append(chunk.finish())
    return [each for each in found if each is not None]


def score_failures(found: Iterable[PromptScores]) -> list[tuple[int, TetradError]]:
    """Return the requests with scores that are not numbers, and their errors."""
    broken = [each.handle for each in found if not (each.scores < np.inf).all()]
    text = "The model's scores of this prompt are not numbers; its weights, or their precision, do not fit this prompt."
    return [(handle, InternalError(text)) for handle in broken]
