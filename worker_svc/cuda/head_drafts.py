"""Drafts of a draft head on the device: it continues from the target's hidden states (EAGLE-3, multi-token prediction).

The head runs after every step, over all tokens of the step, since hidden states are not kept. Its input at a position is the
target's state there and the token of the next position, which the step may have sampled. The pass is queued before the host
knows which drafts were right: it also computes the tokens after a wrong draft, whose keys and values the next step overwrites.
After the newest token, the head continues with its own hidden states.
"""

from collections.abc import Callable

import numpy as np
import torch

from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep
from tetrad.worker_svc.cuda.draft_head import DeviceHead, StepStates
from tetrad.worker_svc.cuda.drafting import drafting_of
from tetrad.worker_svc.cuda.drafts import NO_DRAFTS, Drafts
from tetrad.worker_svc.cuda.graphs import LEAST_ROWS
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer, PassInputs
from tetrad.worker_svc.cuda.pending import LaunchedStep
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.kv_cache.cache import KvCache


class HeadProgram:
    """The passes of a draft head; see DraftProgram.

    Args:
        runner: the runner of the target model.
        head: the head.
        cache: the KV cache of `head`.
        states: the target's states of the tokens of the last step.
    """

    lag = num_behind = 1

    def __init__(self, runner: CudaModelRunner, head: DeviceHead, cache: KvCache, states: StepStates) -> None:
        self._head, self._cache, self._states = head.head, cache, states
        self.inputs = InputGatherer(head, runner.state, runner.batch, runner.accelerator, shifts=runner.shifts, offset=1)
        self.hidden_size, self.dtype, self.logits = head.config.hidden_size, head.dtype, head.head.logits

    def compute(self, inputs: PassInputs) -> torch.Tensor:
        """See DraftProgram; the tokens are those of the target's last step."""
        return self.continue_from(self._head.begin(self._states.first(len(inputs.token_ids))), inputs)

    def continue_from(self, hidden: torch.Tensor, inputs: PassInputs) -> torch.Tensor:
        """See DraftProgram."""
        return self._head.forward(hidden, inputs.token_ids, inputs.positions, self._cache.layers, inputs.steps)


class HeadDrafts:
    """The drafts of a draft head; see DeviceDrafts.

    Args:
        runner: the runner of the target model.
        head: the head.
        cache: the KV cache of `head`, with the same blocks as the runner's cache.
        num_drafts: the usual number of drafts of a request; 0: unknown, so that no passes are recorded.
    """

    def __init__(self, runner: CudaModelRunner, head: DeviceHead, cache: KvCache, num_drafts: int) -> None:
        self._runner, self._batch, self._cache = runner, runner.batch, cache
        layout = runner.layout
        most_tokens = max(layout.max_num_batched_tokens, layout.max_num_seqs, LEAST_ROWS)  # the last two: a graph's padding
        states = StepStates(head, most_tokens, runner.accelerator.device)
        is_recorded = runner.uses_graphs and head.host_steps is None and num_drafts > 0
        program = HeadProgram(runner, head, cache, states)
        self._drafting = drafting_of(runner, program, num_drafts, is_recorded=is_recorded)
        self.num_graphs = self._drafting.num_graphs
        self._longest = min(layout.max_model_len, head.head.longest)
        runner.watch(states.see)

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
        """Do nothing: the head keeps no requests."""

    def propose(self, plan: SchedulerOutput, step: ExecutedStep) -> Drafts:
        """Compute the step's tokens, and then drafts; see DeviceDrafts."""
        if not isinstance(step, LaunchedStep):
            return NO_DRAFTS
        rows, batch = step.rows, self._batch
        hidden = self._drafting.compute(rows)
        if not plan.num_spec_tokens:
            return NO_DRAFTS
        self._runner.settle()
        sampling = rows.sampling_rows[batch.num_tokens[rows.slots[rows.sampling_rows]] < self._longest]
        slots = rows.slots[sampling]
        num_tokens = batch.num_tokens[slots]
        # The newest token has no state yet; the one before it has.
        last = rows.first_token[sampling] + num_tokens - 2 - rows.num_computed[sampling]
        # The pass that reads a draft is at the position before it, which needs a block.
        num_passes = np.minimum(batch.num_blocks[slots] * batch.block_size + 1, self._longest - 1) - num_tokens
        counts = 1 + np.clip(num_passes, 0, plan.num_spec_tokens - 1)
        return self._drafting.draft(slots, counts, hidden, last)
