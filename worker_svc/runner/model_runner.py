"""Model runner: one step on a device, from plan to tokens.

Owned by the compute thread; made when the KV cache is. It keeps sampled tokens for its own next step, so plans may be queued
before results are read. Whatever `execute` raises means that the device failed; a request that fails alone is an entry of the
result.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, StepPlan, StepResult
from tetrad.worker_svc.core.request_table import RequestTable
from tetrad.worker_svc.core.step_inputs import StepInputs, build_step_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.registry import Model
from tetrad.worker_svc.runner.prompt_logprobs import AskedPrompts, collect, prompt_failures
from tetrad.worker_svc.runner.step_result import step_result
from tetrad.worker_svc.runner.warm_up import dummy_plans
from tetrad.worker_svc.sampler.sampler import Sampled, Sampler


class ModelRunner:
    """Runs plans over a loaded model; see Runner.

    Args:
        model: with its weights.
        layout: KV blocks and limits; FailedPrecondition if the model has fewer positions than max_model_len.
    """

    def __init__(self, model: Model, layout: KvLayout) -> None:
        if layout.max_model_len > model.config.max_position_embeddings:
            raise FailedPrecondition(
                f"max_model_len {layout.max_model_len} exceeds the model's {model.config.max_position_embeddings} positions."
            )
        self._model, self.layout = model, layout
        self._kv_cache = KvCache(
            model.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
        )
        self._batch = InputBatch(
            max_num_seqs=layout.max_num_seqs, max_model_len=layout.max_model_len, block_size=layout.block_size
        )
        self.sampler = Sampler(self._batch, model.config.vocab_size)
        self._asked_prompts = AskedPrompts()
        self._requests = RequestTable(self._batch, model.config.vocab_size, (self.sampler, self._asked_prompts))

    @property
    def num_requests(self) -> int:
        """Requests known."""
        return len(self._batch)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        started = time.perf_counter()
        self._kv_cache.move(plan)
        rows = self._requests.apply(plan)
        if not len(rows.slots):
            return StepResult(plan.step_id, _NONE, _NONE, failures=rows.failures)
        inputs = build_step_inputs(self._batch, rows.slots, rows.num_computed, rows.num_scheduled)
        input_seconds = time.perf_counter() - started
        hidden = self._forward(inputs)
        prompt_logprobs = collect(self._asked_prompts.chunks(inputs, self._batch), hidden, self._model.logits)
        slots, sampled = self._sample(plan, inputs, hidden)
        handles = self._batch.handles[slots].astype(np.uint32)
        failures = dict(prompt_failures(prompt_logprobs))
        failures.update((int(handles[row]), error) for row, error in sampled.failures)
        for handle in failures:
            self._requests.set_aside(handle)
        return step_result(
            plan.step_id,
            handles,
            sampled,
            failures=[*rows.failures, *failures.items()],
            prompt_logprobs=prompt_logprobs,
            compute_seconds=time.perf_counter() - started,
            input_seconds=input_seconds,
        )

    def forget_all(self) -> None:
        """Forget every request; blocks keep their content until they are written again."""
        self._requests.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps of typical sizes on the null block: kernels are made per size, on their first use."""
        plans = dummy_plans(self.layout)
        for completed, plan in enumerate(plans, 1):
            self.execute(plan)
            self.forget_all()
            report(completed, len(plans))

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the hidden states [T, hidden] of the step's tokens."""
        metadata = self._model.attention.build_metadata(inputs, self._batch)
        token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
        return self._model.forward(token_ids, positions, self._kv_cache.layers, metadata)

    def _sample(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor) -> tuple[Ints, Sampled]:
        """Sample for the requests whose last known token was computed, and keep what was sampled."""
        rows = inputs.sampling_rows
        slots = inputs.slots[rows]
        if not len(rows):
            return slots, Sampled(slots)
        if len(rows) < len(hidden):
            hidden = hidden[torch.from_numpy(inputs.first_token[rows] + inputs.num_scheduled[rows] - 1)]
        if self.sampler.needs_logits(slots, plan.grammar):
            sampled = self.sampler.sample(self._model.logits(hidden), slots, plan.grammar)
        else:
            sampled = self.sampler.take(*self._model.argmax(hidden))
        self._batch.append_sampled(slots, sampled.token_ids)
        return slots, sampled


_NONE = np.empty(0, np.uint32)
