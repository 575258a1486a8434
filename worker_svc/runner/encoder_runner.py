"""Encoder runner: one step over whole prompts, from plan to pooled answers.

Owned by the compute thread. An encoder has no KV cache, so a request is computed in the step in which it is added, and no state
of it is kept. An exception of `execute` means that the device failed; a request that cannot run is an entry of the result.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, Unsupported
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import ModelRunnerOutput, NewRequest, Pooled, SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec
from tetrad.worker_svc.layers.pooler import Pooler
from tetrad.worker_svc.models.packed_prompts import PackedEncoder, PackedPrompts
from tetrad.worker_svc.runner.loras import NoLoras
from tetrad.worker_svc.runner.pooling_rows import pooled_answers
from tetrad.worker_svc.runner.prompt_embeds import NoPromptEmbeds

_WARM_UP_LENGTHS = (1, 16, 128)


class EncoderRunner:
    """Runs plans over a loaded encoder; see Runner.

    Args:
        encoder: with its weights.
        pooler: makes the answers.
        facts: what it pools.
        layout: limits of a step.
    """

    def __init__(self, encoder: PackedEncoder, pooler: Pooler, facts: PoolingFacts, layout: KvLayout) -> None:
        self._encoder, self._pooler, self._facts, self._layout = encoder, pooler, facts, layout

    num_requests = 0
    """No request outlives its step."""

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        started = time.perf_counter()
        if len(plan.cached.handles):
            raise InvalidRequest("An encoder computes a prompt in one step, but the plan goes on with one.")
        failures = [(new.handle, error) for new in plan.new_requests if (error := self._problem(new)) is not None]
        failed = {handle for handle, _ in failures}
        runnable = [new for new in plan.new_requests if new.handle not in failed]
        pooled, not_finite = self._run(runnable) if runnable else ([], [])
        failures += not_finite
        return ModelRunnerOutput(
            plan.step_id,
            _NONE,
            _NONE,
            pooled=pooled,
            failures=failures,
            compute_seconds=time.perf_counter() - started,
        )

    def forget_all(self) -> None:
        """Do nothing: nothing is kept."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run prompts of typical lengths: torch plans each kind of product on its first use."""
        for completed, length in enumerate(_WARM_UP_LENGTHS, 1):
            with torch.inference_mode():
                self._encoder.forward(PackedPrompts.of([np.zeros(min(length, self._layout.max_model_len), np.int64)], [None]))
            report(completed, len(_WARM_UP_LENGTHS))

    def _run(self, requests: list[NewRequest]) -> tuple[list[Pooled], list[tuple[int, TetradError]]]:
        prompts = [self._pooler.prompt(_spec_of(new), new.token_ids) for new in requests]
        packed = PackedPrompts.of([new.token_ids for new in requests], [each.spec.token_type_boundary for each in prompts])
        parts = torch.split(self._encoder.forward(packed), packed.lengths.tolist())
        for prompt, hidden in zip(prompts, parts, strict=True):
            prompt.gathering.add(hidden[prompt.gathering.wanted(len(hidden), is_end=True)])
        return pooled_answers(self._pooler, [(new.handle, prompt) for new, prompt in zip(requests, prompts, strict=True)])

    def _problem(self, new: NewRequest) -> TetradError | None:
        """Return why a request cannot run, or None."""
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
            NoLoras().check(new)
            NoPromptEmbeds().check(new)
            self._facts.check(new.pooling)
        except TetradError as error:
            return error
        return None


def _spec_of(new: NewRequest) -> PoolingSpec:
    assert new.pooling is not None  # see _problem
    return new.pooling


_NONE = np.empty(0, np.uint32)
