"""Drafting runner of the device: a draft model or a draft head proposes tokens after each step (speculative decoding).

Wraps the target model's runner, and shares its requests. The passes that propose are queued behind the target's step, and each
draft is drawn on the device and read there by the next pass, so the compute thread waits for nothing but the number of accepted
drafts.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from tetrad.worker_svc.core.plan import DraftTokens, Ints, SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, finished
from tetrad.worker_svc.cuda.device.accelerator import Download
from tetrad.worker_svc.cuda.drafts import DeviceDrafts, Drafts
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
        """Run dummy steps of the target model, and then of both; record the graphs of the target, and then of the drafter."""
        plans = [
            replace(plan, num_spec_tokens=_WARM_UP_DRAFTS)
            for plan in dummy_plans(self._runner.layout, self._batch.max_num_seqs)
        ]
        num_own, done, total = len(plans) + self._drafts.num_graphs, 0, 0

        def report_target(completed: int, total_of_target: int) -> None:
            nonlocal done, total
            done, total = completed, total_of_target + num_own
            report(done, total)

        def report_own() -> None:
            nonlocal done
            done += 1
            report(done, total)

        self._runner.warm_up(report_target)
        for plan in plans:
            finished(self.execute(plan))
            self.forget_all()
            report_own()
        self._runner.record(lambda: self._drafts.record(report_own), "The drafter's graphs")

    @torch.inference_mode()
    def rehearse_graphs(self) -> None:
        """Run what the graphs record, to measure their memory."""
        self._runner.rehearse_graphs()
        self._drafts.rehearse()

    def take_failed(self) -> tuple[int, ...]:
        """See CudaModelRunner."""
        return self._runner.take_failed()

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput, failed: Iterable[int] | None = None) -> ExecutedStep:
        """Queue one step, and the passes that propose up to `plan.num_spec_tokens` tokens after it.

        `failed`: see CudaModelRunner.
        """
        self._drafts.move(plan)
        step = self._runner.execute(plan, failed)
        drafts = self._drafts.propose(plan, step)
        if not len(drafts.slots) or not isinstance(step, LaunchedStep):
            return step
        download = self._accelerator.download(drafts.token_ids)
        return DraftedStep(step, drafts, self._batch.handles[drafts.slots].copy(), download)


class DraftedStep:
    """A target step with the proposals after it; see PendingStep.

    Args:
        step: the target's step.
        drafts: the drafts of R requests.
        handles: [R], the requests.
        download: copies the drafts.
    """

    def __init__(self, step: LaunchedStep, drafts: Drafts, handles: Ints, download: Download) -> None:
        self._step, self._drafts, self._handles, self._download = step, drafts, handles, download

    def wait(self) -> ModelRunnerOutput:
        """Wait for the step and the drafts; the time of the drafts counts as the step's."""
        result, started = self._step.wait(), time.perf_counter()
        found = self._drafts.read(self._download.wait())
        proposals = DraftTokens.of(dict(zip(self._handles.tolist(), found, strict=True)))
        seconds = time.perf_counter() - started
        return replace(result, proposals=proposals, compute_seconds=result.compute_seconds + seconds, draft_seconds=seconds)
