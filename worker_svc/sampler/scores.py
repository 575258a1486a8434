"""Scores: the values of which log-probabilities are gathered, for the rows of a step that have them.

The sampler shows each step's logits before and after its changes to the collaborator that its logprobs mode chose. Raw scores
are taken before the changes; processed ones after them, divided by the temperature, and -inf where truncation leaves a token
out. The values of a step are valid until the next one. Knows no requests, and nothing of candidates.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.core.sampler_options import LogprobsMode


class DrawnRows(NamedTuple):
    """The rows of a step that were drawn at random, and what truncation left of them."""

    rows: Ints  # [D], indices in the step's rows
    weights: torch.Tensor  # [D, V], see draw.py
    thresholds: Floats  # [D]; a smaller weight could not be drawn
    temperature: torch.Tensor  # [D] float32


class Scores(Protocol):
    """Holds the values of a step's rows with log-probabilities."""

    def see_raw(self, logits: torch.Tensor, rows: Ints) -> None:
        """Take note of the logits [R, V] before any change; `rows` [A]: the rows with log-probabilities."""

    def see_processed(self, logits: torch.Tensor, rows: Ints) -> None:
        """Take note of the logits [R, V] after all changes but temperature and truncation."""

    def values(self, drawn: DrawnRows | None) -> torch.Tensor:
        """Return the values [A, V] float32; `drawn`: None if no row was drawn at random."""


def make_scores(mode: LogprobsMode) -> Scores:
    """Return the collaborator for a mode."""
    return ProcessedScores(mode) if mode.is_processed else RawScores(mode)


class RawScores:
    """The model's own logits or log-probabilities; see Scores."""

    def __init__(self, mode: LogprobsMode) -> None:
        self._memory, self._has_logits = _Memory(), mode.has_logits
        self._values = torch.empty(0)

    def see_raw(self, logits: torch.Tensor, rows: Ints) -> None:
        """See Scores."""
        chosen = _of_rows(logits, rows)
        out = self._memory.like(chosen)
        self._values = out.copy_(chosen) if self._has_logits else torch.log_softmax(chosen, 1, out=out)

    def see_processed(self, logits: torch.Tensor, rows: Ints) -> None:
        """Do nothing."""

    def values(self, drawn: DrawnRows | None) -> torch.Tensor:  # noqa: ARG002 - of the protocol
        """See Scores."""
        return self._values


class ProcessedScores:
    """The logits or log-probabilities that tokens are drawn from; see Scores."""

    def __init__(self, mode: LogprobsMode) -> None:
        self._memory, self._has_logits = _Memory(), mode.has_logits
        self._values, self._rows = torch.empty(0), np.empty(0, np.int64)

    def see_raw(self, logits: torch.Tensor, rows: Ints) -> None:
        """Do nothing."""

    def see_processed(self, logits: torch.Tensor, rows: Ints) -> None:
        """See Scores."""
        chosen = _of_rows(logits, rows)
        self._values, self._rows = self._memory.like(chosen).copy_(chosen), rows  # the draw overwrites the logits

    def values(self, drawn: DrawnRows | None) -> torch.Tensor:
        """See Scores."""
        if drawn is not None:
            self._cut(drawn)
        return self._values if self._has_logits else torch.log_softmax(self._values, 1, out=self._values)

    def _cut(self, drawn: DrawnRows) -> None:
        """Divide the rows that were drawn by their temperatures, and mask what truncation left out."""
        _, own, theirs = np.intersect1d(self._rows, drawn.rows, assume_unique=True, return_indices=True)
        for place, at in zip(own.tolist(), theirs.tolist(), strict=True):
            values = self._values[place].div_(drawn.temperature[at])
            values.masked_fill_(drawn.weights[at] < float(drawn.thresholds[at]), float("-inf"))


class _Memory:
    """Memory that is kept between steps, because allocating new memory costs more than writing it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def like(self, values: torch.Tensor) -> torch.Tensor:
        """Return memory of this shape, with arbitrary content; valid until the next call."""
        if self._buffer.numel() < values.numel():
            self._buffer = torch.empty(values.numel())
        return self._buffer[: values.numel()].view(values.shape)


def _of_rows(logits: torch.Tensor, rows: Ints) -> torch.Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows)]
