"""Staged runner: the model runner of a pipeline's leader, with several steps in progress in the stages.

Owned by the compute thread. A step begins when its plan arrives: the first stage's layers are computed, and the hidden states
pass from stage to stage and back to the leader. The step is completed, and its tokens sampled, when the hidden states are back,
and before a step that needs these tokens begins. So steps of different requests keep the stages busy, and the tokens are the
same as with one step at a time.
"""

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from tetrad.services.errors import Unavailable
from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput, StagedStep
from tetrad.worker_svc.models.draft_head import StageTaps
from tetrad.worker_svc.models.interface import Model
from tetrad.worker_svc.runner.model_runner import BegunStep, ModelRunner
from tetrad.worker_svc.runner.rank_channels import Arrival, RankChannels


class StepUnderWay(StagedStep):
    """A step that has passed the first stage and has no result yet; see StagedStep.

    Args:
        begun: the step.
        handles: the requests of the step.
        deciding: the requests whose state changes when the step is completed: they get a token, or may fail.
        arrival: the transfer of the last stage's message, with the hidden states [T, hidden] after the last layer.
        complete: function that completes this step and the steps before it.
    """

    def __init__(
        self,
        begun: BegunStep,
        handles: Collection[int],
        deciding: Collection[int],
        arrival: Arrival,
        complete: Callable[["StepUnderWay"], None],
    ) -> None:
        self.begun, self.handles, self.deciding, self.arrival = begun, frozenset(handles), frozenset(deciding), arrival
        self._complete = complete
        self.result: Future[ModelRunnerOutput] = Future()
        self.result.set_running_or_notify_cancel()  # no caller can cancel it: a later step may complete this one

    @property
    def has_drafts(self) -> bool:
        """Whether the step verifies drafts."""
        return self.begun.plan.drafts is not None

    def arrive(self) -> None:
        """See StagedStep."""
        self.arrival.wait()

    def complete(self) -> None:
        """See StagedStep."""
        self._complete(self)


class StagedRunner(ModelRunner[M]):
    """Executes plans with a model whose layers are on several stages; see Runner.

    Args:
        model: the group's model; its `forward` sends the first stage's hidden states to the next stage.
        layout: see ModelRunner.
        ranks: the connections to the other ranks.
        taps: unpack what the last stage sends.
        options: see ModelRunner.
    """

    def __init__(self, model: Model[M], layout: KvLayout, ranks: RankChannels, taps: StageTaps, **options: Any) -> None:
        super().__init__(model, layout, **options)
        self._ranks, self._taps = ranks, taps
        self._under_way: deque[StepUnderWay] = deque()
        self._leaving: set[int] = set()  # requests that a plan removed while a step in progress contained them

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | StagedStep:
        """Complete the steps that this plan depends on, then begin its step."""
        self._complete_through(self._last_needed(plan))
        begun = self._begin(self._without_early_removals(plan))
        if isinstance(begun, ModelRunnerOutput):
            return begun
        num_tokens, hidden_size = self._forward(begun.inputs).shape
        deciding = begun.handles[begun.inputs.sampling_rows]
        asked = [chunk.handle for chunk in self._asked_prompts.chunks(begun.inputs, self._batch)]
        asked += [chunk.handle for chunk in self._asked_scores.chunks(begun.inputs, self._batch)]
        step = StepUnderWay(
            begun,
            handles=begun.handles.tolist(),
            deciding=[*asked, *deciding.tolist()],
            arrival=self._ranks.expect_hidden(num_tokens, (1 + self._taps.num_passed) * hidden_size),
            complete=self._complete_one,
        )
        self._under_way.append(step)
        return step

    def forget_all(self) -> None:
        """Remove every request; wait for the steps in progress and discard them."""
        while self._under_way:
            step = self._under_way.popleft()
            with suppress(RuntimeError):  # the group is lost
                step.arrive()
            step.result.set_exception(Unavailable("The step's requests were forgotten."))
        self._leaving.clear()
        super().forget_all()

    @torch.inference_mode()
    def _complete_one(self, step: StepUnderWay) -> None:
        """Complete a step and the steps before it, unless it is complete."""
        if step in self._under_way:
            self._complete_through(step)

    def _complete_through(self, last: StepUnderWay | None) -> None:
        while last is not None and self._under_way:
            step = self._under_way.popleft()
            try:
                hidden = self._taps.unpack(step.arrival.wait())
                step.result.set_result(self._complete(step.begun, hidden))
            except BaseException as error:
                step.result.set_exception(error)
                raise
            if step is last:
                return

    def _last_needed(self, plan: SchedulerOutput) -> StepUnderWay | None:
        """Return the last step that has to be completed before the plan: it samples for, or may fail, a request of the plan.

        Or it has drafts: layers with states keep those of one step until they are verified. It is the last step in progress if
        the plan adds more requests than free slots, a request whose removal is delayed, or one that it also removes.
        """
        new = {request.handle for request in plan.new_requests}
        if new & self._leaving.union(plan.removed_handles) or self.num_requests + len(new) > self.layout.max_num_seqs:
            return self._under_way[-1] if self._under_way else None
        computed = {*plan.cached.handles.tolist(), *new}
        return next((step for step in reversed(self._under_way) if step.has_drafts or step.deciding & computed), None)

    def _without_early_removals(self, plan: SchedulerOutput) -> SchedulerOutput:
        """Return the plan with only those removals whose requests are in no step in progress; delay the others."""
        named = set(chain.from_iterable(step.handles for step in self._under_way))
        removed = self._leaving.union(plan.removed_handles)
        self._leaving = removed & named
        return replace(plan, removed_handles=[handle for handle in removed if handle not in named])
