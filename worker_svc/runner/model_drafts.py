"""Model drafts: a second, smaller model proposes tokens after each step (speculative decoding with a draft model).

Called by the target model's runner; owned by the compute thread. The draft model has its own keys and values under the block
ids of the plans. It computes the requests' new tokens, and then proposes one token after another, as far as allocated blocks
have room. Drafts are drawn with the noise of their request's seed and position, like the request's own tokens: if both models
have about the same distribution, they draw the same tokens at any temperature. Proposals never change the output: the next step
verifies them.
"""

from typing import Any, Generic

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.core.plan import DraftTokens, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs, build_step_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.interface import Model
from tetrad.worker_svc.runner.draft_progress import DraftProgress, DraftRow, columns_of, ends_of_drafts
from tetrad.worker_svc.runner.drafts import SampledStep
from tetrad.worker_svc.runner.model_runner import ModelRunner


class ModelDrafts(Generic[M]):
    """The HostDrafts of a draft model; see HostDrafts.

    Args:
        runner: the runner of the target model, which samples.
        model: the draft model; it has the same vocabulary, and one KV group with full attention.
        cache: the KV cache of `model`, with the same blocks as the runner's cache.
    """

    def __init__(self, runner: ModelRunner[Any], model: Model[M], cache: KvCache) -> None:
        self._model, self._cache = model, cache
        self._batch, self._sampler = runner.batch, runner.sampler
        self._progress = DraftProgress(runner.batch, runner.layout.max_num_batched_tokens)

    def forget_all(self) -> None:
        """See HostDrafts."""
        self._progress.clear()

    def begin(self, plan: SchedulerOutput) -> None:
        """See HostDrafts."""
        self._cache.move(plan)
        self._progress.note(plan)

    def propose(self, step: SampledStep) -> DraftTokens | None:
        """See HostDrafts."""
        if not step.plan.num_spec_tokens:
            return None
        return self._propose(self._progress.rows(step.plan, step.sampled.tolist()), step.plan.num_spec_tokens)

    def _propose(self, rows: list[DraftRow], num_tokens: int) -> DraftTokens | None:
        """Compute the new tokens, then propose drafts; return None if there is nothing to compute."""
        if not rows:
            return None
        inputs = build_step_inputs(self._batch, *columns_of(rows))
        hidden = self._forward(inputs)
        ready = {row.slot: row for row in rows if row.is_ready}
        at_end = np.array([int(slot) in ready for slot in inputs.slots], np.bool_)
        last = (inputs.first_token + inputs.num_scheduled - 1)[at_end]
        found = self._extend(inputs.slots[at_end], hidden[torch.from_numpy(last)], num_tokens)
        return DraftTokens.of({ready[slot].handle: tokens for slot, tokens in found.items()})

    def _extend(self, slots: Ints, hidden: torch.Tensor, num_tokens: int) -> dict[int, list[int]]:
        """Return slot -> proposed tokens; `hidden` [R, hidden] is the hidden state of the last token of each slot [R]."""
        batch = self._batch
        known = batch.num_tokens[slots].copy()
        everyone, found = slots, {int(slot): list[int]() for slot in slots}
        try:
            while len(slots):
                tokens = self._choose(hidden, slots)
                for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                    found[slot].append(token)
                batch.append_sampled(slots, tokens)
                if len(found[int(slots[0])]) == num_tokens:
                    break
                places = batch.num_tokens[slots] - 1
                has_room = places < ends_of_drafts(batch, slots)
                if not has_room.any():
                    break
                inputs = build_step_inputs(batch, slots[has_room], places[has_room], np.ones(int(has_room.sum()), np.int64))
                slots, hidden = inputs.slots, self._forward(inputs)
                self._progress.advance(slots, np.ones(len(slots), np.int64))
        finally:
            batch.num_tokens[everyone] = known
        return found

    def _choose(self, hidden: torch.Tensor, slots: Ints) -> Ints:
        if self._sampler.draws(slots):
            return self._sampler.guess(self._model.logits(hidden), slots)
        tokens, _ = self._model.argmax(hidden)
        return tokens

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        metadata = self._model.attention.build_metadata(inputs, self._batch)
        token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
        return self._model.forward(token_ids, positions, self._cache.layers, metadata)
