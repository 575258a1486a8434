"""Prompt logprobs: gathers log-probabilities of the prompt's tokens chunk by chunk, and returns them with the last chunk.

Called by the model runner after the forward pass, on the compute thread, for the few requests with prompt logprobs. They are
part of the step with the first output token, because the engine core has no earlier output to send them with. A request that is
preempted before that step is computed and gathered again.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.services.errors import InternalError, TetradError
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.core.result import LogprobRows, PromptLogprobs, join_rows
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.sampler.logprobs import gather_logprobs

ROWS_AT_ONCE = 256
"""Number of positions whose logits are computed at once. For a whole prompt, logits would take 200 MB per 1,000 tokens, with a
vocabulary of 49,152."""

LogitsOf = Callable[[torch.Tensor, int], torch.Tensor]
"""Function (hidden states [N, hidden], slot) -> logits [N, V]."""


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The tokens of a prompt in one step; the hidden state of each predicts the next prompt token, its follower."""

    handle: int
    slot: int
    first: int  # index of its first token in the step's tokens
    followers: Ints  # [N], the token ids after each of the tokens, within the prompt
    num_top: int
    gathered: list[LogprobRows]  # log-probabilities of the earlier chunks; those of this chunk are appended
    last_position: int | None  # the prompt's last position, if this chunk reaches it

    def pieces(self) -> Iterator[tuple[slice, Ints]]:
        """Yield slices of the step's tokens, each small enough to compute logits at once, with the followers."""
        for start in range(0, len(self.followers), ROWS_AT_ONCE):
            followers = self.followers[start : start + ROWS_AT_ONCE]
            yield slice(self.first + start, self.first + start + len(followers)), followers

    def finish(self) -> PromptLogprobs | None:
        """Return the log-probabilities of the whole prompt; None before the prompt's end, and for a prompt of one token."""
        if self.last_position is None or not self.gathered:
            return None
        rows = join_rows(self.gathered)
        self.gathered.clear()
        return PromptLogprobs(self.handle, self.last_position + 1 - len(rows.ranks), rows)


class AskedPrompts:
    """A SlotListener that keeps the requests with prompt logprobs, and their number of candidates per position."""

    def __init__(self) -> None:
        self._num_top: dict[int, int] = {}
        self._gathered: dict[int, list[LogprobRows]] = {}

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the request if it has prompt logprobs."""
        if request.sampling.num_prompt_logprobs is not None:
            self._num_top[slot] = request.sampling.num_prompt_logprobs
            self._gathered[slot] = []

    def remove(self, slot: int) -> None:
        """Delete the slot's state."""
        self._num_top.pop(slot, None)
        self._gathered.pop(slot, None)

    def chunks(self, rows: StepRows, batch: InputBatch) -> list[PromptChunk]:
        """Return the step's chunks of prompts whose requests have prompt logprobs."""
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


def collect(
    chunks: list[PromptChunk], hidden: torch.Tensor, logits_of: LogitsOf, *, has_logits: bool = False
) -> list[PromptLogprobs]:
    """Compute the chunks' log-probabilities from a step's hidden states [T, hidden], on the host; return complete prompts.

    `has_logits`: logits take the place of log-probabilities, see LogprobsMode.
    """
    found = []
    for chunk in chunks:
        for piece, followers in chunk.pieces():
            logits = logits_of(hidden[piece], chunk.slot)
            scores = logits if has_logits else logits.log_softmax(1)
            chunk.gathered.append(gather_logprobs(scores, followers, chunk.num_top))
        found.append(chunk.finish())
    return [each for each in found if each is not None]


def prompt_failures(found: Iterable[PromptLogprobs]) -> list[tuple[int, TetradError]]:
    """Return the requests whose prompt logprobs are not numbers, and their errors.

    One NaN or infinite logit makes all log-probabilities of its position NaN. Of logits, only the tokens' own are looked at.
    """
    failures: list[tuple[int, TetradError]] = []
    for each in found:
        broken = np.flatnonzero(~(each.rows.logprobs[:, 0] < np.inf))
        if len(broken):
            failures.append((each.handle, _not_a_number(each.start + int(broken[0]))))
    return failures


def _not_a_number(position: int) -> InternalError:
    return InternalError(
        f"The model's log-probability of token {position} of the prompt is not a number; its weights, or their precision, do "
        "not fit this prompt."
    )
