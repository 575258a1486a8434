"""Drafts of a draft model on the device: a smaller model reads the requests' tokens and proposes the next ones.

The draft model reads the same tokens and block tables on the device as the target, and has its own keys and values under the
same block ids.
"""

from collections.abc import Callable

import numpy as np
import torch

from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep
from tetrad.worker_svc.core.step_inputs import order_rows
from tetrad.worker_svc.cuda.drafting import drafting_of
from tetrad.worker_svc.cuda.drafts import NO_DRAFTS, Drafts
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer, PassInputs
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.runner.draft_progress import DraftProgress, columns_of, ends_of_drafts


class ModelProgram:
    """The passes of a draft model; see DraftProgram.

    Args:
        runner: the runner of the target model.
        model: the draft model.
        cache: the KV cache of `model`.
    """

    lag, num_behind = 0, 2  # it also computes the newest token, to draft after it

    def __init__(self, runner: CudaModelRunner, model: DeviceModel, cache: KvCache) -> None:
        self._model, self._cache = model, cache
        self.inputs = InputGatherer(model, runner.state, runner.batch, runner.accelerator)
        self.hidden_size, self.dtype, self.logits = model.config.hidden_size, model.dtype, model.logits

    def compute(self, inputs: PassInputs) -> torch.Tensor:
        """See DraftProgram."""
        return self._model.forward(inputs.token_ids, inputs.positions, self._cache.layers, inputs.steps)

    def continue_from(self, hidden: torch.Tensor, inputs: PassInputs) -> torch.Tensor:  # noqa: ARG002 - of DraftProgram
        """See DraftProgram; the model reads the drafts alone."""
        return self.compute(inputs)


class ModelDrafts:
    """The drafts of a draft model; see DeviceDrafts.

    Args:
        runner: the runner of the target model.
        model: the draft model; it has the same vocabulary, and one KV group with full attention.
        cache: the KV cache of `model`, with the same blocks as the runner's cache.
        num_drafts: the usual number of drafts of a request; 0: unknown, so that no passes are recorded.
        uses_graphs: whether the model's passes may be recorded.
    """

    def __init__(
        self, runner: CudaModelRunner, model: DeviceModel, cache: KvCache, num_drafts: int, *, uses_graphs: bool
    ) -> None:
        self._runner, self._batch, self._cache = runner, runner.batch, cache
        is_recorded = uses_graphs and model.host_steps is None and num_drafts > 0
        self._drafting = drafting_of(runner, ModelProgram(runner, model, cache), num_drafts, is_recorded=is_recorded)
        self.num_graphs = self._drafting.num_graphs
        self._progress = DraftProgress(runner.batch, runner.layout.max_num_batched_tokens)

    def move(self, plan: SchedulerOutput) -> None:
        """See DeviceDrafts."""
        self._cache.move(plan)

    def record(self, report: Callable[[], None]) -> None:
        """See DeviceDrafts."""
        self._drafting.record(report)

    def rehearse(self) -> None:
        """See DeviceDrafts."""
        self._drafting.rehearse()

    def forget_all(self) -> None:
        """See DeviceDrafts."""
        self._progress.clear()

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Compute the tokens that the draft model lacks, and then drafts; see DeviceDrafts."""
        self._progress.note(plan)
        if not plan.num_spec_tokens or not isinstance(step, LaunchedStep):
            return NO_DRAFTS
        self._runner.settle()
        rows = self._progress.rows(plan, step.handles.tolist())
        if not rows:
            return NO_DRAFTS
        ordered = order_rows(self._batch, *columns_of(rows))
        hidden = self._drafting.compute(ordered)
        ready = np.isin(ordered.slots, [row.slot for row in rows if row.is_ready])
        slots, last = ordered.slots[ready], (ordered.first_token + ordered.num_scheduled - 1)[ready]
        num_passes = ends_of_drafts(self._batch, slots) - self._batch.num_tokens[slots]
        counts = 1 + np.clip(num_passes, 0, plan.num_spec_tokens - 1)
        self._progress.advance(slots, counts - 1)
        return self._drafting.draft(slots, counts, hidden, last)
