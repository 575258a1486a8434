"""Encoder runner: executes steps of whole prompts, from a plan to pooled answers.

Owned by the compute thread. An encoder has no KV cache, so a request is computed in the step in which it is added, and none of
its state is kept. An exception from `execute` means that the device failed; a request that cannot run is an entry of the
result.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unsupported
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import NewRequest, SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec
from tetrad.worker_svc.core.request_table import refuse_adapters, refuse_prompt_embeds
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, Pooled
from tetrad.worker_svc.layers.pooler import Pooler, PoolingPrompt
from tetrad.worker_svc.models.packed_prompts import PackedEncoder, PackedPrompts
from tetrad.worker_svc.runner.pooling_rows import pooled_answers

_WARM_UP_LENGTHS = (1, 16, 128)


@dataclass(frozen=True, slots=True)
class ComputedPrompts:
    """A step whose hidden states are computed, or queued on a device.

    Attributes:
        step_id: the plan's step id.
        handles, prompts: the requests that ran; the prompts contain their hidden states.
        failures: the requests that could not run, with their errors.
        started: start time in seconds, from `time.perf_counter`.
    """

    step_id: int
    handles: Sequence[int]
    prompts: Sequence[PoolingPrompt]
    failures: Sequence[tuple[int, TetradError]]
    started: float

    def result(
        self, pooled: Sequence[Pooled], failures: Sequence[tuple[int, TetradError]], compute_seconds: float
    ) -> ModelRunnerOutput:
        """Return the step's result with these answers and further failures."""
        return ModelRunnerOutput(
            self.step_id,
            _NONE,
            _NONE,
            pooled=pooled,
            failures=[*self.failures, *failures],
            compute_seconds=compute_seconds,
        )


def answer_on_host(pooler: Pooler, step: ComputedPrompts) -> ModelRunnerOutput:
    """Return the result of a step whose hidden states are in host memory."""
    pooled, failures = pooled_answers(pooler, list(zip(step.handles, step.prompts, strict=True)))
    return step.result(pooled, failures, time.perf_counter() - step.started)


class EncoderRunner:
    """Executes plans with a loaded encoder; see Runner.

    Args:
        encoder: the model with its weights.
        pooler: computes the answers from hidden states.
        facts: the supported pooling tasks.
        layout: limits of a step.
        answer: computes the result of a step, or queues that computation on the device.
    """

    def __init__(
        self,
        encoder: PackedEncoder,
        pooler: Pooler,
        facts: PoolingFacts,
        layout: KvLayout,
        answer: Callable[[Pooler, ComputedPrompts], ExecutedStep] = answer_on_host,
    ) -> None:
        self._encoder, self._pooler, self._facts, self._layout = encoder, pooler, facts, layout
        self._answer = answer

    num_requests = 0
    """Always 0: no request is kept after its step."""

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Run one step, or queue it on the device."""
        started = time.perf_counter()
        if len(plan.cached.handles):
            raise InvalidRequest("An encoder computes a prompt in one step, but the plan goes on with one.")
        failures = [(new.handle, error) for new in plan.new_requests if (error := self._problem(new)) is not None]
        failed = {handle for handle, _ in failures}
        runnable = [new for new in plan.new_requests if new.handle not in failed]
        prompts = self._compute(runnable) if runnable else []
        step = ComputedPrompts(plan.step_id, [new.handle for new in runnable], prompts, failures, started)
        return self._answer(self._pooler, step)

    def forget_all(self) -> None:
        """Do nothing: no request is kept after its step."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run prompts of typical lengths: torch prepares each shape of matrix product on its first use."""
        for completed, length in enumerate(_WARM_UP_LENGTHS, 1):
            with torch.inference_mode():
                self._encoder.forward(PackedPrompts.of([np.zeros(min(length, self._layout.max_model_len), np.int64)], [None]))
            report(completed, len(_WARM_UP_LENGTHS))

    def _compute(self, requests: list[NewRequest]) -> list[PoolingPrompt]:
        """Return the requests' prompts, with their hidden states."""
        prompts = [self._pooler.prompt(_spec_of(new), new.token_ids) for new in requests]
        packed = PackedPrompts.of([new.token_ids for new in requests], [each.spec.token_type_boundary for each in prompts])
        parts = torch.split(self._encoder.forward(packed), packed.lengths.tolist())
        for prompt, hidden in zip(prompts, parts, strict=True):
            prompt.gathering.add(hidden[prompt.gathering.wanted(len(hidden), is_end=True)])
        return prompts

    def _problem(self, new: NewRequest) -> TetradError | None:
        """Return the error of a request that cannot run; None if it can."""
        if new.refusal is not None:
            return new.refusal
        if new.pooling is None:
            return Unsupported("The model pools and does not generate.")
        largest, vocab_size = int(new.token_ids.max(initial=0)), self._encoder.vocab_size
        if largest >= vocab_size:
            return InvalidRequest(f"Token id {largest} is not in the vocabulary of {vocab_size} tokens.")
        if new.num_computed_tokens or new.num_scheduled_tokens != len(new.token_ids):
            return InternalError("An encoder computes a prompt in one step, but the plan has a part of it.")
        try:
            refuse_adapters(new)
            refuse_prompt_embeds(new)
            self._facts.check(new.pooling)
        except TetradError as error:
            return error
        return None


def _spec_of(new: NewRequest) -> PoolingSpec:
    assert new.pooling is not None  # see _problem
    return new.pooling


_NONE = np.empty(0, np.uint32)
