"""Drafting runner of the device: a draft model or a draft head proposes tokens after each step (speculative decoding).

Wraps the target model's runner, and shares its requests. The passes that propose are queued behind the target's step, and each
draft is drawn on the device and read there by the next pass, so the compute thread waits for nothing but the number of accepted
drafts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tetrad.worker_svc.core.plan import DraftTokens, ExecutedStep, Ints, ModelRunnerOutput, SchedulerOutput, finished
from tetrad.worker_svc.cuda.device.accelerator import Download
from tetrad.worker_svc.cuda.drafts import DeviceDrafts
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.runner.warm_up import dummy_plans

_WARM_UP_DRAFTS = 2
"""Number of drafts in a dummy step: one from the pass over new tokens, and one from a pass over a draft."""


class DeviceDraftingRunner:
    """A Runner whose results contain proposals; see Runner.

    Args:
        runner: the runner of the target model, which samples.
        drafts: proposes tokens after this runner's steps.
    """

    def __init__(self, runner: CudaModelRunner, drafts: DeviceDrafts) -> None:
        self._runner, self._drafts = runner, drafts
        self._batch, self._accelerator = runner.batch, runner.accelerator

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def forget_all(self) -> None:
        """Remove every request."""
        self._drafts.forget_all()
        self._runner.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps of the target model, and then of both."""
        plans = [
            replace(plan, num_spec_tokens=_WARM_UP_DRAFTS)
            for plan in dummy_plans(self._runner.layout, self._batch.max_num_seqs)
        ]
        done = 0

        def report_target(completed: int, total: int) -> None:
            nonlocal done
            done = completed
            report(completed, total + len(plans))

        self._runner.warm_up(report_target)
        for number, plan in enumerate(plans, 1):
            finished(self.execute(plan))
            self.forget_all()
            report(done + number, done + len(plans))

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Queue one step, and the passes that propose up to `plan.num_spec_tokens` tokens after it."""
        self._drafts.move(plan)
        step = self._runner.execute(plan)
        drafts = self._drafts.propose(plan, step)
        if not drafts or not isinstance(step, LaunchedStep):
            return step
        download = self._accelerator.download([tokens for _, tokens in drafts])
        return DraftedStep(step, [self._batch.handles[slots].copy() for slots, _ in drafts], download)


class DraftedStep:
    """A target step with the proposals after it; see PendingStep.

    Args:
        step: the target's step.
        handles: for each place of a draft, the requests with a draft there.
        download: copies the drafts of each place.
    """

    def __init__(self, step: LaunchedStep, handles: Sequence[Ints], download: Download) -> None:
        self._step, self._handles, self._download = step, handles, download

    def wait(self) -> ModelRunnerOutput:
        """Wait for the step and the drafts; the time of the drafts counts as the step's."""
        result, started = self._step.wait(), time.perf_counter()
        found: dict[int, list[int]] = {}
        for handles, tokens in zip(self._handles, self._download.wait(), strict=True):
            for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
                found.setdefault(handle, []).append(token)
        compute_seconds = result.compute_seconds + time.perf_counter() - started
        return replace(result, proposals=DraftTokens.of(found), compute_seconds=compute_seconds)
