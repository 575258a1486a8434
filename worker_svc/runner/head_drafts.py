"""Head drafts: a draft head of the model proposes tokens after each step (EAGLE-3, multi-token prediction).

Called by the model's runner; owned by the compute thread. The head has its own keys and values under the block ids of the
plans. It runs after every step, over the tokens whose hidden states the step has computed, since hidden states are not kept.
The head's input at a position is the model's hidden state there and the token of the next position. After the last known token,
the head continues with its own hidden states. Drafts are drawn with the noise of their request's seed and position. Proposals
never change the output: the next step verifies them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.core.plan import DraftTokens, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs, build_step_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.draft_head import DraftHead
from tetrad.worker_svc.models.host import HostSteps
from tetrad.worker_svc.runner.drafts import SampledStep
from tetrad.worker_svc.runner.model_runner import ModelRunner


class HeadDrafts:
    """The HostDrafts of a draft head; see HostDrafts.

    Args:
        runner: the runner of the model, which samples.
        head: the draft head.
        steps: builds the metadata of the head's attention.
        cache: the KV cache of `head`, with the same blocks as the runner's cache.
        states_of: returns the head's input states [T, F] for the model's last hidden states [T, hidden].
    """

    def __init__(
        self,
        runner: ModelRunner[Any],
        head: DraftHead[PagedMetadata],
        steps: HostSteps,
        cache: KvCache,
        states_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._head, self._steps, self._cache, self._states_of = head, steps, cache, states_of
        self._batch, self._sampler = runner.batch, runner.sampler
        self._longest = min(self._batch.max_model_len, head.longest)

    def forget_all(self) -> None:
        """Do nothing: a head keeps nothing about requests."""

    def begin(self, plan: SchedulerOutput) -> None:
        """See HostDrafts."""
        self._cache.move(plan)

    def propose(self, step: SampledStep) -> DraftTokens | None:
        """Run the head over the step's tokens without rejected drafts; return proposals for the requests that sampled."""
        inputs, batch, states = step.inputs, self._batch, self._states_of(step.hidden)
        ends = np.minimum(inputs.num_computed + inputs.num_scheduled, batch.num_tokens[inputs.slots] - 1)
        stays = np.array([batch.slot_of(handle) is not None for handle in step.handles.tolist()], np.bool_)
        stays &= ends > inputs.num_computed
        if not stays.any():
            return None
        counts = (ends - inputs.num_computed)[stays]
        own = build_step_inputs(batch, inputs.slots[stays], inputs.num_computed[stays], counts)
        hidden = self._forward(own, self._head.begin(states[_tokens_of(inputs, own)]))
        ready = np.isin(batch.handles[own.slots], step.sampled) & (batch.num_tokens[own.slots] < self._longest)
        num_tokens = step.plan.num_spec_tokens
        if not num_tokens or not ready.any():
            return None
        last = (own.first_token + own.num_scheduled - 1)[ready]
        found = self._extend(own.slots[ready], hidden[torch.from_numpy(last)], num_tokens)
        return DraftTokens.of({int(batch.handles[slot]): tokens for slot, tokens in found.items()})

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> dict[int, list[int]]:
        """Return slot -> proposed tokens; `hidden` [R, hidden] is the head's hidden state of the last row of each slot [R]."""
        batch, everyone = self._batch, slots
        known = batch.num_tokens[slots].copy()
        found = {int(slot): list[int]() for slot in slots}
        try:
            while True:
                tokens = self._choose(hidden, slots)
                for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                    found[slot].append(token)
                batch.append_sampled(slots, tokens)
                places = batch.num_tokens[slots] - 2  # the token after this place is the one just drafted
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
        if self._sampler.draws(slots):
            return self._sampler.guess(self._head.logits(hidden), slots)
        return self._head.argmax(hidden)

    def _forward(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """Return the head's hidden states for a step's rows; the token of a row is the one after its position."""
        metadata = self._steps.build_metadata(inputs, self._batch).pages
        owners = np.repeat(inputs.slots, inputs.num_scheduled)
        token_ids = torch.from_numpy(self._batch.token_ids[owners, inputs.positions + 1].astype(np.int64))
        return self._head.forward(hidden, token_ids, torch.from_numpy(inputs.positions), self._cache.layers, metadata)


def _tokens_of(inputs: StepInputs, own: StepInputs) -> torch.Tensor:
    """Return the indices in `inputs` of the tokens of `own`; each request of `own` begins with the same token in both."""
    first_of = dict(zip(inputs.slots.tolist(), inputs.first_token.tolist(), strict=True))
    first = np.array([first_of[slot] for slot in own.slots.tolist()], np.int64)
    return torch.from_numpy(np.arange(own.num_tokens) + np.repeat(first - own.first_token, own.num_scheduled))
