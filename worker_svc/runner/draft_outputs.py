"""Draft outputs: computes the logits for all draft places that a step verifies, with one run of the output head.

Created by the model runner for one step, on the compute thread. The head's weights are read once, not once for each place.
The logits of a row are bit for bit those of the row computed alone. If the logits of all places would take too much memory,
they are computed place by place.
"""

from collections.abc import Callable
from typing import Generic

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.models.interface import Model

_MAX_LOGITS = 1 << 24
"""Largest number of logits that are kept at once: 64 MiB of float32."""


class DraftOutputs(Generic[M]):
    """The outputs of a step's model, by row and place.

    Args:
        model: the model with the output head.
        hidden: [T, hidden], hidden states of the step's tokens.
        first: [R]; hidden[first[r] + p] predicts the token at place p of row r.
        num_drafts: [R]; a row has one place more than drafts.
        select: called with the rows [N] whose outputs the model computes next, to select their adapters.
    """

    def __init__(
        self, model: Model[M], hidden: torch.Tensor, first: Ints, num_drafts: Ints, select: Callable[[Ints], None]
    ) -> None:
        self._model, self._hidden, self._first, self._select = model, hidden, first, select
        num_places = num_drafts + 1
        self._owners = np.repeat(np.arange(len(first)), num_places)
        self._start = np.cumsum(num_places) - num_places
        self._rows = np.repeat(first - self._start, num_places) + np.arange(int(num_places.sum()))
        self._fits = len(self._rows) * model.config.vocab_size <= _MAX_LOGITS
        self._best: tuple[Ints, Floats] | None = None
        self._logits: torch.Tensor | None = None

    def argmax(self, rows: Ints, place: int) -> tuple[Ints, Floats]:
        """Return the token ids of the largest logits of `rows` at this place, and these logits."""
        if self._best is None:
            self._select(self._owners)
            self._best = self._model.argmax(self._hidden[torch.from_numpy(self._rows)])
        ids, largest = self._best
        found = self._start[rows] + place
        return ids[found], largest[found]

    def logits(self, rows: Ints, place: int) -> torch.Tensor:
        """Return the logits [len(rows), V] at this place; the caller may change them."""
        if not self._fits:
            self._select(rows)
            return self._model.logits(self._hidden[torch.from_numpy(self._first[rows] + place)])
        if self._logits is None:
            self._select(self._owners)
            self._logits = self._model.logits(self._hidden[torch.from_numpy(self._rows)])
        return self._logits[torch.from_numpy(self._start[rows] + place)]
