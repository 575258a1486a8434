"""Drafts on the device: the interface of draft models and draft heads, and their drafts after a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts after a step.

    Attributes:
        slots: [R], the slots of the requests, those with the most drafts first.
        counts: [R], the number of drafts of each.
        token_ids: [places, R] or for each place of a draft [R], int32 on the device, the drafts of the first requests.
    """

    slots: Ints
    counts: Ints
    token_ids: Sequence[torch.Tensor]

    def read(self, arrays: Sequence[np.ndarray]) -> list[list[int]]:
        """Return the drafts of each request, from the copies of `token_ids`."""
        places = [place.tolist() for array in arrays for place in np.atleast_2d(array)]
        return [[places[number][row] for number in range(count)] for row, count in enumerate(self.counts.tolist())]


NO_DRAFTS = Drafts(np.empty(0, np.int64), np.empty(0, np.int64), ())


class DeviceDrafts(Protocol):
    """Proposes tokens after the steps of one runner, on the compute thread; it only queues work for the device."""

    num_graphs: int
    """The number of graphs that `record` records."""

    def move(self, plan: SchedulerOutput) -> None:
        """Move blocks of its KV cache as the plan says; called before the step."""

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Return up to `plan.num_spec_tokens` drafts of each request after a step, which was queued; called after each step."""

    def record(self, report: Callable[[], None]) -> None:
        """Record the graphs of the drafter's passes."""

    def rehearse(self) -> None:
        """Run what `record` records, to measure its memory."""

    def forget_all(self) -> None:
        """Forget all requests."""
