"""Drafts of a draft head on the device: it continues from the target's hidden states (EAGLE-3, multi-token prediction).

The head runs after every step, over all tokens of the step, since hidden states are not kept. Its input at a position is the
target's state there and the token of the next position, which the step may have sampled. The pass is queued before the host
knows which drafts were right: it also computes the tokens after a wrong draft, whose keys and values the next step overwrites.
After the newest token, the head continues with its own hidden states.
"""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import ExecutedStep, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.draft_head import DeviceHead, StepStates
from tetrad.worker_svc.cuda.drafts import Drafts, draw_drafts, single_rows
from tetrad.worker_svc.cuda.graphs import LEAST_ROWS
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.kv_cache.cache import KvCache


class HeadDrafts:
    """The drafts of a draft head; see DeviceDrafts.

    Args:
        runner: the runner of the target model.
        head: the head.
        cache: the KV cache of `head`, with the same blocks as the runner's cache.
    """

    def __init__(self, runner: CudaModelRunner, head: DeviceHead, cache: KvCache) -> None:
        self._runner, self._head, self._cache = runner, head.head, cache
        self._batch, self._upload = runner.batch, runner.accelerator.upload
        layout = runner.layout
        most_tokens = max(layout.max_num_batched_tokens, layout.max_num_seqs, LEAST_ROWS)  # the last two: a graph's padding
        self._states = StepStates(head, most_tokens, runner.accelerator.device)
        self._inputs = InputGatherer(head, runner.state, runner.batch, runner.accelerator, offset=1)
        self._longest = min(layout.max_model_len, head.head.longest)
        runner.watch(self._states.see)

    def move(self, plan: SchedulerOutput) -> None:
        """See DeviceDrafts."""
        self._cache.move(plan)

    def forget_all(self) -> None:
        """Do nothing: the head keeps no requests."""

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Compute the step's tokens, and then drafts; see DeviceDrafts."""
        if not isinstance(step, LaunchedStep):
            return []
        rows = step.rows
        hidden = self._forward(self._head.begin(self._states.first(rows.num_tokens)), rows)
        if not plan.num_spec_tokens:
            return []
        self._runner.settle()
        sampling = rows.sampling_rows
        slots, num_computed, first_token = rows.slots[sampling], rows.num_computed[sampling], rows.first_token[sampling]
        num_tokens = self._batch.num_tokens[slots]
        ready = num_tokens < self._longest
        last = first_token + num_tokens - 2 - num_computed  # the newest token has no state yet; the one before it has
        return self._extend(slots[ready], hidden[self._upload(last[ready])], plan.num_spec_tokens)

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> Drafts:
        """Return the drafts after hidden states [R, hidden], the head's for the newest tokens of slots [R]."""
        batch, found = self._batch, Drafts()
        while len(slots):
            places = batch.num_tokens[slots] + len(found)
            found.append((slots, draw_drafts(self._runner, self._head.logits(hidden), slots, len(found))))
            # The pass that reads this draft is at the position before it.
            goes_on = (places - 1 < batch.num_blocks[slots] * batch.block_size) & (places + 1 < self._longest)
            if len(found) == num_tokens or not goes_on.any():
                break
            slots, hidden = slots[goes_on], hidden[self._upload(np.flatnonzero(goes_on))]
            hidden = self._forward(hidden, single_rows(slots, places[goes_on] - 1))
        return found

    def _forward(self, hidden: torch.Tensor, rows: StepRows) -> torch.Tensor:
        """Return the head's hidden states [T, hidden] for its inputs [T, hidden] of a step's tokens."""
        inputs = self._inputs.of_rows(rows)
        return self._head.forward(hidden, inputs.token_ids, inputs.positions, self._cache.layers, inputs.steps)
