"""Beams: selects the continuations of a prompt after each step, by the rules of transformers' `generate(num_beams=...)`.

Called by beam_search.py. Pure: takes the most likely next tokens of every running beam, knows no engine, no text and no
prompt. Invariant: `running` has the best unfinished beams in falling order, `finished` at most `width` ended ones likewise.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tetrad.frontend.request.outputs import PositionLogprobs

EarlyStopping = bool | Literal["never"]
"""When to stop after enough beams have finished: see BeamSearchParams."""


@dataclass(frozen=True, slots=True)
class Beam:
    """One continuation: its tokens, the candidates at each position, and the sum of its tokens' log-probabilities."""

    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A beam that has ended, and the score that ranks it."""

    beam: Beam
    score: float
    reason: Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A possible extension of a running beam by one token."""

    parent: int
    token_id: int
    cum_logprob: float


class Beams:
    """The beams of one prompt.

    Args:
        width: beams to keep.
        max_tokens: maximum number of tokens of a beam.
        eos_token_ids: tokens that end a beam.
        length_penalty: exponent of the length that divides the sum; a value above 0 favours long beams.
        early_stopping: see BeamSearchParams.
    """

    def __init__(
        self,
        width: int,
        *,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        length_penalty: float,
        early_stopping: EarlyStopping,
    ) -> None:
        self._width = width
        self._max_tokens = max_tokens
        self._eos_token_ids = eos_token_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._length = 0
        self.running = [Beam([], [], 0.0)]
        self.finished: list[FinishedBeam] = []

    @property
    def num_candidates(self) -> int:
        """The number of top tokens that a step needs of each beam: enough for `width` beams to continue if others end."""
        return num_candidates(self._width, len(self._eos_token_ids))

    @property
    def done(self) -> bool:
        """Whether no further step is possible, or none can improve the result."""
        if self._length == self._max_tokens or not self.running:
            return True
        if len(self.finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        # Sums only decrease. So the upper bound of a beam's score is its present sum, divided by the length penalty of the
        # greatest length that it can reach. Without "never" this length is the present one, as transformers' heuristic does.
        reachable = self._max_tokens if self._early_stopping == "never" and self._length_penalty > 0 else self._length
        return self._score(self.running[0].cum_logprob, reachable) <= self.finished[-1].score

    def step(self, tops: Sequence[PositionLogprobs]) -> None:
        """Extend every running beam by one token.

        Args:
            tops: the `num_candidates` most likely next tokens of each running beam, in the order of `running`.
        """
        parents, self.running = self.running, []
        self._length += 1
        is_last = self._length == self._max_tokens
        for place, candidate in enumerate(self._best_candidates(parents, tops)):
            if candidate.token_id in self._eos_token_ids or is_last:
                # Candidates after the first `width` serve only to keep enough beams running.
                if place < self._width:
                    reason: Literal["stop", "length"] = "stop" if candidate.token_id in self._eos_token_ids else "length"
                    self._finish(_extend(parents, tops, candidate), reason)
            elif len(self.running) < self._width:
                self.running.append(_extend(parents, tops, candidate))

    def abort(self) -> None:
        """End all running beams at their present length."""
        for beam in self.running:
            self._finish(beam, "abort")
        self.running = []
        self._max_tokens = self._length

    def _best_candidates(self, parents: list[Beam], tops: Sequence[PositionLogprobs]) -> list[_Candidate]:
        candidates = (
            _Candidate(place, token_id, parent.cum_logprob + entry.logprob)
            for place, (parent, top) in enumerate(zip(parents, tops, strict=True))
            for token_id, entry in top.items()
        )
        return heapq.nlargest(self.num_candidates, candidates, key=lambda candidate: candidate.cum_logprob)

    def _finish(self, beam: Beam, reason: Literal["stop", "length", "abort"]) -> None:
        self.finished.append(FinishedBeam(beam, self._score(beam.cum_logprob, max(len(beam.token_ids), 1)), reason))
        self.finished.sort(key=lambda each: each.score, reverse=True)
        del self.finished[self._width :]

    def _score(self, cum_logprob: float, length: int) -> float:
        return cum_logprob / math.pow(length, self._length_penalty)


def num_candidates(width: int, num_eos_token_ids: int) -> int:
    """Return the number of top tokens that a step needs of each of `width` beams."""
    return max(2, 1 + num_eos_token_ids) * width


def _extend(parents: list[Beam], tops: Sequence[PositionLogprobs], candidate: _Candidate) -> Beam:
    parent, top = parents[candidate.parent], tops[candidate.parent]
    return Beam([*parent.token_ids, candidate.token_id], [*parent.logprobs, top], candidate.cum_logprob)
