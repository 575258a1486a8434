"""Drafts on the host: the interface of draft models and draft heads for the model runner, which calls them in each step."""

from dataclasses import dataclass
from typing import Protocol

import torch

from tetrad.worker_svc.core.plan import DraftTokens, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step whose tokens are sampled, so that drafts may follow them.

    Attributes:
        plan, inputs: the step's plan and inputs.
        handles: [R], the requests of the step's rows; some of them may have failed since.
        hidden: [T, hidden], the model's hidden states after the last layer.
        sampled: handles of the rows that sampled; with verified drafts, a request can have several.
    """

    plan: SchedulerOutput
    inputs: StepInputs
    handles: Ints
    hidden: torch.Tensor
    sampled: Ints


class HostDrafts(Protocol):
    """Proposes tokens after the steps of one runner, on the compute thread.

    In a pipeline of stages, further steps of other requests may begin before a step is sampled; steps are sampled in the order
    in which they began.
    """

    def begin(self, plan: SchedulerOutput) -> None:
        """Note a plan whose step begins, and move blocks of the drafter's KV cache as it says."""

    def propose(self, step: SampledStep) -> DraftTokens | None:
        """Return up to `plan.num_spec_tokens` drafts of each request; called after each step that has rows. None: no drafts."""

    def forget_all(self) -> None:
        """Forget all requests."""


class NoHostDrafts:
    """Proposes no tokens; see HostDrafts."""

    def begin(self, plan: SchedulerOutput) -> None:
        """Do nothing."""

    def propose(self, step: SampledStep) -> None:
        """Return None."""

    def forget_all(self) -> None:
        """Do nothing."""
