"""Drafts on the device: the interface of draft models and draft heads, and the sampling of their tokens."""

from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import ExecutedStep, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.runner import CudaModelRunner

Drafts = list[tuple[Ints, torch.Tensor]]
"""For each place of a draft, the slots [R] with a draft there, and the drafts [R] int32 on the device."""


class DeviceDrafts(Protocol):
    """Proposes tokens after the steps of one runner, on the compute thread; it only queues work for the device."""

    def move(self, plan: SchedulerOutput) -> None:
        """Move blocks of its KV cache as the plan says; called before the step."""

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Return up to `plan.num_spec_tokens` drafts of each request after a step, which was queued; called after each step."""

    def forget_all(self) -> None:
        """Forget all requests."""


def draw_drafts(runner: CudaModelRunner, logits: torch.Tensor, slots: Ints, place: int) -> torch.Tensor:
    """Draw a draft [R] for each slot [R] from logits [R, V], and write it to its place after the slot's known tokens."""
    places = np.full(len(slots), place, np.int64)
    tokens = runner.sampler.guess(logits, slots, places)
    runner.state.write(slots, places, tokens)
    return tokens


def single_rows(slots: Ints, positions: Ints) -> StepRows:
    """Return the rows of a step of one token for each slot [R], at its position [R]."""
    num_rows = len(slots)
    return StepRows(
        slots=slots,
        num_computed=positions,
        num_scheduled=np.ones(num_rows, np.int64),
        first_token=np.arange(num_rows),
        num_decodes=num_rows,
        num_tokens=num_rows,
        sampling_rows=np.arange(num_rows),
    )
