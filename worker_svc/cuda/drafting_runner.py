"""Drafting runner of the device: a smaller model proposes tokens after each step (speculative decoding with a draft model).

Wraps the target model's runner, and shares its requests: the draft model reads the same tokens and block tables on the device,
and has its own keys and values under the same block ids. Its work is queued behind the target's step, and each draft is drawn
on the device and read there by the next pass, so the compute thread waits for nothing but the number of accepted drafts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from tetrad.worker_svc.core.plan import DraftTokens, ExecutedStep, Ints, ModelRunnerOutput, SchedulerOutput, finished
from tetrad.worker_svc.core.step_inputs import StepRows, order_rows
from tetrad.worker_svc.cuda.device.accelerator import Download
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.runner.draft_progress import DraftProgress, columns_of, room_for
from tetrad.worker_svc.runner.warm_up import dummy_plans

_WARM_UP_DRAFTS = 2
"""Number of drafts in a dummy step: one from the pass over new tokens, and one from a pass over a draft."""


class DeviceDraftingRunner:
    """A Runner whose results contain a draft model's proposals; see Runner.

    Args:
        runner: the runner of the target model, which samples.
        model: the draft model; it has the same vocabulary, and one KV group with full attention.
        cache: the KV cache of `model`, with the same blocks as the runner's cache.
    """

    def __init__(self, runner: CudaModelRunner, model: DeviceModel, cache: KvCache) -> None:
        self._runner, self._model, self._cache = runner, model, cache
        self._batch, self._accelerator = runner.batch, runner.accelerator
        self._passes = ForwardPasses(model, cache, runner.state, runner.batch, runner.accelerator)
        self._progress = DraftProgress(runner.batch, runner.layout.max_num_batched_tokens)

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def forget_all(self) -> None:
        """Remove every request."""
        self._progress.clear()
        self._runner.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps of the target model, and then of both models."""
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
        self._cache.move(plan)
        step = self._runner.execute(plan)
        self._progress.note(plan)
        if not plan.num_spec_tokens or not isinstance(step, LaunchedStep):
            return step
        self._runner.settle()
        return self._propose(plan, step)

    def _propose(self, plan: SchedulerOutput, step: LaunchedStep) -> ExecutedStep:
        rows = self._progress.rows(plan, step.handles.tolist())
        if not rows:
            return step
        ordered = order_rows(self._batch, *columns_of(rows))
        hidden = self._passes.of_rows(ordered)
        ready = np.isin(ordered.slots, [row.slot for row in rows if row.is_ready])
        last = (ordered.first_token + ordered.num_scheduled - 1)[ready]
        drafts = self._extend(ordered.slots[ready], self._select(hidden, last), plan.num_spec_tokens)
        if not drafts:
            return step
        download = self._accelerator.download([tokens for _, tokens in drafts])
        return DraftedStep(step, [self._batch.handles[slots].copy() for slots, _ in drafts], download)

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> list[tuple[Ints, torch.Tensor]]:
        """Return for each place of a draft the slots [R] with a draft there, and the drafts [R].

        Args:
            slots: [R], the requests that drafts can follow.
            hidden: [R, hidden], the hidden states of their newest tokens.
            num_tokens: maximum number of drafts of a request.
        """
        found: list[tuple[Ints, torch.Tensor]] = []
        while len(slots) and len(found) < num_tokens:
            places = np.full(len(slots), len(found), np.int64)
            tokens = self._runner.sampler.guess(self._model.logits(hidden), slots, places)
            self._runner.state.write(slots, places, tokens)
            found.append((slots, tokens))
            ends = self._batch.num_tokens[slots] + places
            has_room = room_for(self._batch, slots, ends)
            if not has_room.any():
                break
            slots = slots[has_room]
            if len(found) < num_tokens:
                hidden = self._passes.of_rows(_single_rows(slots, ends[has_room]))
                self._progress.advance(slots)
        return found

    def _select(self, values: torch.Tensor, rows: Ints) -> torch.Tensor:
        return values[self._accelerator.upload(rows)]


class DraftedStep:
    """A target step with the draft model's proposals after it; see PendingStep.

    Args:
        step: the target's step.
        handles: for each place of a draft, the requests with a draft there.
        download: copies the drafts of each place.
    """

    def __init__(self, step: LaunchedStep, handles: Sequence[Ints], download: Download) -> None:
        self._step, self._handles, self._download = step, handles, download

    def wait(self) -> ModelRunnerOutput:
        """Wait for the step and the drafts; the time of the draft model counts as the step's."""
        result, started = self._step.wait(), time.perf_counter()
        found: dict[int, list[int]] = {}
        for handles, tokens in zip(self._handles, self._download.wait(), strict=True):
            for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
                found.setdefault(handle, []).append(token)
        compute_seconds = result.compute_seconds + time.perf_counter() - started
        return replace(result, proposals=DraftTokens.of(found), compute_seconds=compute_seconds)


def _single_rows(slots: Ints, places: Ints) -> StepRows:
    """Return the rows of a step of one token for each slot [R], at its place [R]."""
    num_rows = len(slots)
    return StepRows(
        slots=slots,
        num_computed=places,
        num_scheduled=np.ones(num_rows, np.int64),
        first_token=np.arange(num_rows),
        num_decodes=num_rows,
        num_tokens=num_rows,
        sampling_rows=np.arange(num_rows),
    )
