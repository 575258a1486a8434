"""Drafts of a draft model on the device: a smaller model reads the requests' tokens and proposes the next ones.

The draft model reads the same tokens and block tables on the device as the target, and has its own keys and values under the
same block ids.
"""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import ExecutedStep, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import order_rows
from tetrad.worker_svc.cuda.drafts import Drafts, draw_drafts, single_rows
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.runner.draft_progress import DraftProgress, columns_of, room_for


class ModelDrafts:
    """The drafts of a draft model; see DeviceDrafts.

    Args:
        runner: the runner of the target model.
        model: the draft model; it has the same vocabulary, and one KV group with full attention.
        cache: the KV cache of `model`, with the same blocks as the runner's cache.
    """

    def __init__(self, runner: CudaModelRunner, model: DeviceModel, cache: KvCache) -> None:
        self._runner, self._model, self._cache = runner, model, cache
        self._batch, self._upload = runner.batch, runner.accelerator.upload
        self._passes = ForwardPasses(model, cache, runner.state, runner.batch, runner.accelerator)
        self._progress = DraftProgress(runner.batch, runner.layout.max_num_batched_tokens)

    def move(self, plan: SchedulerOutput) -> None:
        """See DeviceDrafts."""
        self._cache.move(plan)

    def forget_all(self) -> None:
        """See DeviceDrafts."""
        self._progress.clear()

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Compute the tokens that the draft model lacks, and then drafts; see DeviceDrafts."""
        self._progress.note(plan)
        if not plan.num_spec_tokens or not isinstance(step, LaunchedStep):
            return []
        self._runner.settle()
        rows = self._progress.rows(plan, step.handles.tolist())
        if not rows:
            return []
        ordered = order_rows(self._batch, *columns_of(rows))
        hidden = self._passes.of_rows(ordered)
        ready = np.isin(ordered.slots, [row.slot for row in rows if row.is_ready])
        last = (ordered.first_token + ordered.num_scheduled - 1)[ready]
        return self._extend(ordered.slots[ready], hidden[self._upload(last)], plan.num_spec_tokens)

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> Drafts:
        """Return the drafts after hidden states [R, hidden] of the newest tokens of slots [R]."""
        found: Drafts = []
        while len(slots) and len(found) < num_tokens:
            places = self._batch.num_tokens[slots] + len(found)
            found.append((slots, draw_drafts(self._runner, self._model.logits(hidden), slots, len(found))))
            has_room = room_for(self._batch, slots, places)
            if not has_room.any():
                break
            slots = slots[has_room]
            if len(found) < num_tokens:
                hidden = self._passes.of_rows(single_rows(slots, places[has_room]))
                self._progress.advance(slots)
        return found
