"""Head runner: lets a head of the model propose the tokens behind each step (EAGLE-3, multi-token prediction).

A Runner around the model's own; owned by the compute thread. The head has keys and values of its own under the block ids of the
plans. It runs behind every step, over the tokens whose hidden states the step has computed: they are not kept. Its row at a
position has the token behind that position. Behind the last known token it goes on with its own hidden states. Drafts are drawn
with the noise of their request's seed and position. Proposals never change tokens: the next step verifies them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.core.plan import DraftTokens, Ints, ModelRunnerOutput, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs, build_step_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.draft_head import DraftHead
from tetrad.worker_svc.runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a step of the model has computed: its tokens, their requests and what it hands out of them [T, F]."""

    inputs: StepInputs
    handles: Ints
    states: torch.Tensor


class HeadRunner(Generic[M]):
    """See Runner.

    Args:
        runner: of the model that samples.
        head: proposes.
        cache: of `head`, with the blocks of the runner's.
        states_of: what the model hands out, from its last hidden states [T, hidden]: [T, F].
    """

    def __init__(
        self,
        runner: ModelRunner[Any],
        head: DraftHead[M],
        cache: KvCache,
        states_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._runner, self._head, self._cache, self._states_of = runner, head, cache, states_of
        self._batch = runner.batch
        self._longest = min(self._batch.max_model_len, head.longest)
        self._computed: _Computed | None = None
        runner.watch(self._note)

    @property
    def num_requests(self) -> int:
        """Requests known."""
        return self._runner.num_requests

    def forget_all(self) -> None:
        """Forget every request."""
        self._runner.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps of the model that samples."""
        self._runner.warm_up(report)
        self._computed = None

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and the head behind it; propose as many tokens as the plan says."""
        started = time.perf_counter()
        self._cache.move(plan)
        result = self._runner.execute(plan)
        assert isinstance(result, ModelRunnerOutput), "on one worker and the host, a step is over when it was executed"
        computed, self._computed = self._computed, None
        if computed is None:
            return result
        proposals = self._propose(computed, result, plan.num_spec_tokens)
        return replace(result, proposals=proposals, compute_seconds=time.perf_counter() - started)

    def _note(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        states = self._states_of(hidden).clone()
        self._computed = _Computed(inputs, self._batch.handles[inputs.slots].copy(), states)

    def _propose(self, computed: _Computed, result: ModelRunnerOutput, num_tokens: int) -> DraftTokens | None:
        """Run the head over what was computed and is right; return proposals for the requests that sampled."""
        inputs, batch = computed.inputs, self._batch
        ends = np.minimum(inputs.num_computed + inputs.num_scheduled, batch.num_tokens[inputs.slots] - 1)
        stays = np.array([batch.slot_of(handle) is not None for handle in computed.handles.tolist()], np.bool_)
        stays &= ends > inputs.num_computed
        if not stays.any():
            return None
        counts = (ends - inputs.num_computed)[stays]
        own = build_step_inputs(batch, inputs.slots[stays], inputs.num_computed[stays], counts)
        hidden = self._forward(own, self._head.begin(computed.states[_tokens_of(inputs, own)]))
        sampled = np.isin(batch.handles[own.slots], result.handles.astype(np.int64))
        ready = sampled & (batch.num_tokens[own.slots] < self._longest)
        if not num_tokens or not ready.any():
            return None
        last = (own.first_token + own.num_scheduled - 1)[ready]
        found = self._extend(own.slots[ready], hidden[torch.from_numpy(last)], num_tokens)
        return DraftTokens(
            batch.handles[list(found)],
            np.array([len(tokens) for tokens in found.values()], np.int64),
            np.array([token for tokens in found.values() for token in tokens], np.int64),
        )

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> dict[int, list[int]]:
        """Return slot -> its proposals; hidden states [R, hidden] are the head's of the last row of each slot [R]."""
        batch, everyone = self._batch, slots
        known = batch.num_tokens[slots].copy()
        found = {int(slot): list[int]() for slot in slots}
        try:
            while True:
                tokens = self._choose(hidden, slots)
                for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                    found[slot].append(token)
                batch.append_sampled(slots, tokens)
                places = batch.num_tokens[slots] - 2  # the token behind it is the one just drafted
                goes_on = (places < batch.num_blocks[slots] * batch.block_size) & (places + 2 < self._longest)
                if len(found[int(slots[0])]) == num_tokens or not goes_on.any():
                    return found
                own = build_step_inputs(batch, slots[goes_on], places[goes_on], np.ones(int(goes_on.sum()), np.int64))
                row_of = {slot: row for row, slot in enumerate(slots.tolist())}
                rows = torch.tensor([row_of[slot] for slot in own.slots.tolist()])
                slots, hidden = own.slots, self._forward(own, hidden[rows])
        finally:
            batch.num_tokens[everyone] = known

    def _choose(self, hidden: torch.Tensor, slots: Ints) -> Ints:
        if self._runner.sampler.draws(slots):
            return self._runner.sampler.guess(self._head.logits(hidden), slots)
        return self._head.argmax(hidden)

    def _forward(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """Return the head's hidden states of a step's rows, each with the token behind it."""
        metadata = self._head.attention.build_metadata(inputs, self._batch)
        owners = np.repeat(inputs.slots, inputs.num_scheduled)
        token_ids = torch.from_numpy(self._batch.token_ids[owners, inputs.positions + 1].astype(np.int64))
        return self._head.forward(hidden, token_ids, torch.from_numpy(inputs.positions), self._cache.layers, metadata)


def _tokens_of(inputs: StepInputs, own: StepInputs) -> torch.Tensor:
    """Return the places of the rows of `own` in a step that began with the same tokens of its requests."""
    first_of = dict(zip(inputs.slots.tolist(), inputs.first_token.tolist(), strict=True))
    first = np.array([first_of[slot] for slot in own.slots.tolist()], np.int64)
    return torch.from_numpy(np.arange(own.num_tokens) + np.repeat(first - own.first_token, own.num_scheduled))
