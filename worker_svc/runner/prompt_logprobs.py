"""Prompt logprobs: gathers log-probabilities of the prompt's tokens chunk by chunk, and returns them with the last chunk.

Called by the model runner after the forward pass, on the compute thread, for the few requests with prompt logprobs. They are
part of the step with the first output token, as the engine core has no earlier output to send them with. A request that is
preempted before that is computed and gathered anew.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, LogprobRows, NewRequest, PromptLogprobs, join_rows
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.sampler.logprobs import gather_logprobs

_ROWS_AT_ONCE = 256
"""Logits of a whole prompt would take 200 MB per 1,000 tokens of a 49,152-word vocabulary."""

LogitsOf = Callable[[torch.Tensor, int], torch.Tensor]
"""Hidden states [N, hidden] of a slot -> logits [N, V]."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Tokens of a prompt whose followers in it are known: their hidden states predict those."""

    handle: int
    slot: int
    first: int  # of its tokens among the step's
    followers: Ints  # [N]
    num_top: int
    gathered: list[LogprobRows]  # of the chunks before; what this one brings is appended
    last_position: int | None  # of the prompt, if this chunk reaches it

    def pieces(self) -> Iterator[tuple[slice, Ints]]:
        """Yield which of the step's tokens to make logits for at once, and their followers."""
        for start in range(0, len(self.followers), _ROWS_AT_ONCE):
            followers = self.followers[start : start + _ROWS_AT_ONCE]
            yield slice(self.first + start, self.first + start + len(followers)), followers

    def finish(self) -> PromptLogprobs | None:
        """Return the log-probabilities of the whole prompt; None before its end, and for a prompt of one token."""
        if self.last_position is None or not self.gathered:
            return None
        rows = join_rows(self.gathered)
        self.gathered.clear()
        return PromptLogprobs(self.handle, self.last_position + 1 - len(rows.ranks), rows)


class AskedPrompts:
    """A SlotListener that knows who asked, and for how many."""

    def __init__(self) -> None:
        self._num_top: dict[int, int] = {}
        self._gathered: dict[int, list[LogprobRows]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Remember a request that asks."""
        if request.sampling.num_prompt_logprobs is not None:
            self._num_top[slot] = request.sampling.num_prompt_logprobs
            self._gathered[slot] = []

    def remove(self, slot: int) -> None:
        """Forget the slot."""
        self._num_top.pop(slot, None)
        self._gathered.pop(slot, None)

    def chunks(self, rows: StepRows, batch: InputBatch) -> list[PromptChunk]:
        """Return the step's chunks of prompts whose requests ask for log-probabilities."""
        if not self._num_top:
            return []
        asked = [(row, slot) for row, slot in enumerate(rows.slots.tolist()) if slot in self._num_top]
        return [self._chunk(rows, batch, row, slot) for row, slot in asked]

    def _chunk(self, rows: StepRows, batch: InputBatch, row: int, slot: int) -> PromptChunk:
        start, last = int(rows.num_computed[row]), int(batch.num_prompt_tokens[slot]) - 1
        end = start + int(rows.num_scheduled[row])
        return PromptChunk(
            handle=int(batch.handles[slot]),
            slot=slot,
            first=int(rows.first_token[row]),
            followers=batch.token_ids[slot, start + 1 : min(end, last) + 1].astype(np.int64),  # none beyond the prompt
            num_top=self._num_top[slot],
            gathered=self._gathered[slot],
            last_position=last if end > last else None,
        )


def collect(chunks: list[PromptChunk], hidden: torch.Tensor, logits_of: LogitsOf) -> list[PromptLogprobs]:
    """Gather of a step's hidden states [T, hidden], on the host, and return the prompts that are through."""
    found = []
    for chunk in chunks:
        for piece, followers in chunk.pieces():
            logprobs = logits_of(hidden[piece], chunk.slot).log_softmax(1)
            chunk.gathered.append(gather_logprobs(logprobs, followers, chunk.num_top))
        found.append(chunk.finish())
    return [each for each in found if each is not None]


def prompt_failures(found: Iterable[PromptLogprobs]) -> list[tuple[int, TetradError]]:
    """Return the requests whose prompts have log-probabilities that are not numbers, and their errors.

    Logits with a NaN or an infinite one among them make all log-probabilities of their position NaN.
    """
    failures: list[tuple[int, TetradError]] = []
    for each in found:
        broken = np.flatnonzero(np.isnan(each.rows.logprobs[:, 0]))
        if len(broken):
            failures.append((each.handle, _not_a_number(each.start + int(broken[0]))))
    return failures


def _not_a_number(position: int) -> InternalError:
    return InternalError(
        f"The model's log-probability of token {position} of the prompt is not a number; its weights, or their precision, do "
        "not fit this prompt."
    )
