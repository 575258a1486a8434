"""Request table: applies a plan's changes to the known requests, and returns the rows to run.

Called by the runners (model and simulated), on the compute thread. A request that cannot run is answered with its error and set
aside; plans in flight may still contain it, until the engine core removes it. A plan that contradicts the table is refused as
a whole: both sides then start again from the engine core's state, and no request is lost. Knows nothing of devices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from tetrad.services.errors import InvalidRequest, TetradError, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import CachedRequests, DraftTokens, Ints, NewRequest, SamplingSpec, SchedulerOutput

MOST_DRAFTS_WITH_STATES = 512
"""Largest number of drafts in a step of a model with states: layers keep their inputs for all drafts until the step's end."""

_NONE: Ints = np.empty(0, np.int64)


class SlotListener(Protocol):
    """A component that keeps its own state for each slot."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the state of a request that was added in this slot."""

    def remove(self, slot: int) -> None:
        """Delete the state of a slot whose request was removed."""


class SlotPart(SlotListener, Protocol):
    """A listener that may refuse requests."""

    def check(self, request: NewRequest) -> None:
        """Raise the error of a request that cannot run."""


@dataclass(frozen=True, slots=True)
class ScheduledRows:
    """The rows that run in a step, and the requests that cannot run with their errors."""

    slots: Ints
    num_computed: Ints
    num_scheduled: Ints
    failures: Sequence[tuple[int, TetradError]]


def refuse_pooling(request: NewRequest) -> None:
    """Raise Unsupported for a pooling request; the check of models that only generate."""
    if request.pooling is not None:
        raise Unsupported("The model generates and does not pool.")


def refuse_extra_args(request: NewRequest) -> None:
    """Raise Unsupported for a request with extra_args; the check of workers without custom logits processors."""
    if request.sampling.extra_args is not None:
        raise Unsupported("This worker does not support extra_args: it has no logits processors.", field="extra_args")


def refuse_adapters(request: NewRequest) -> None:
    """Raise Unsupported for a request with an adapter; the check of models without LoRA adapters."""
    if request.lora_id:
        raise Unsupported("This worker does not support LoRA adapters here; start with enable_lora.")


def refuse_prompt_embeds(request: NewRequest) -> None:
    """Raise Unsupported for a request with embeddings; the check of devices that only take token ids."""
    if request.prompt_embeds is not None:
        raise Unsupported("This worker's device does not support prompt_embeds.", field="prompt_embeds")


def refuse_media(request: NewRequest) -> None:
    """Raise Unsupported for a request with images; the check of models that take only text."""
    if request.media:
        raise Unsupported("The model on this worker takes only text, no images.", field="mm_features")


class RequestTable:
    """Keeps an input batch, and the listeners with further state by slot, up to date with the plans.

    Args:
        batch: holds the requests' tokens and blocks.
        vocab_size: a request with token ids at or above this number is refused.
        listeners: called for every added and every removed request.
        checks: functions that raise the error of a request that cannot run.
        has_states: whether the model has states, so that drafts must stay in the block of the last known token.
    """

    def __init__(
        self,
        batch: InputBatch,
        vocab_size: int,
        listeners: Sequence[SlotListener],
        checks: Sequence[Callable[[NewRequest], None]] = (refuse_pooling,),
        *,
        has_states: bool = False,
    ) -> None:
        self._batch, self._vocab_size, self._listeners, self._checks = batch, vocab_size, listeners, checks
        self._has_states = has_states
        self._set_aside: set[int] = set()

    def apply(self, plan: SchedulerOutput) -> ScheduledRows:
        """Remove, add and extend requests as the plan says, and return its rows.

        Raises InvalidRequest if the plan names unknown requests, or tokens or blocks that a request does not have.
        """
        failures: list[tuple[int, TetradError]] = []
        for handle in plan.removed_handles:
            self._remove(handle)
        cached = self._known(plan.cached)
        slots = np.array(self._batch.slots_of(cached.handles.tolist()), np.int64)
        self._batch.append_blocks(slots, cached.num_new_blocks, cached.new_block_ids)
        num_computed, num_scheduled = cached.num_computed_tokens, cached.num_scheduled_tokens
        if added := [new for new in plan.new_requests if self._try_add(new, failures)]:
            slots = _joined(slots, self._batch.slots_of([new.handle for new in added]))
            num_computed = _joined(num_computed, (new.num_computed_tokens for new in added))
            num_scheduled = _joined(num_scheduled, (new.num_scheduled_tokens for new in added))
        self._set_drafts(slots, plan.drafts)
        if self._has_states and plan.drafts is not None:
            num_scheduled = num_scheduled - self._drop_drafts(slots)
        rows = ScheduledRows(slots, num_computed, num_scheduled, failures)
        self._check_rows(rows)
        return rows

    def forget_all(self) -> None:
        """Remove every request."""
        for handle in self._batch.known_handles():
            self._remove(handle)
        self._set_aside.clear()

    def _remove(self, handle: int) -> None:
        self._set_aside.discard(handle)
        slot = self._batch.remove(handle)
        if slot is not None:
            for listener in self._listeners:
                listener.remove(slot)

    def set_aside(self, handle: int) -> None:
        """Remove a request that has failed; later plans may still contain it, and its rows are skipped."""
        self._remove(handle)
        self._set_aside.add(handle)

    def _try_add(self, new: NewRequest, failures: list[tuple[int, TetradError]]) -> bool:
        try:
            self._check(new)
        except TetradError as error:
            self.set_aside(new.handle)
            failures.append((new.handle, error))
            return False
        slot = self._batch.add(new)
        self._set_aside.discard(new.handle)
        for listener in self._listeners:
            listener.add(slot, new)
        return True

    def _check(self, new: NewRequest) -> None:
        if new.refusal is not None:
            raise new.refusal
        largest = max(int(new.token_ids.max(initial=0)), _largest_id(new.sampling))
        if largest >= self._vocab_size:
            raise InvalidRequest(f"Token id {largest} is not in the vocabulary of {self._vocab_size} tokens.")
        for check in self._checks:
            check(new)

    def _known(self, cached: CachedRequests) -> CachedRequests:
        """Return the rows whose requests are known: all rows except those of requests that were set aside."""
        handles = cached.handles.tolist()
        if self._batch.knows_all(handles):
            return cached
        unknown = [index for index, handle in enumerate(handles) if self._batch.slot_of(handle) is None]
        for handle in (handles[index] for index in unknown):
            if handle not in self._set_aside:
                raise InvalidRequest(f"The worker knows no request with handle {handle}.")
        is_known = np.ones(len(handles), np.bool_)
        is_known[unknown] = False
        return CachedRequests(
            handles=cached.handles[is_known],
            num_scheduled_tokens=cached.num_scheduled_tokens[is_known],
            num_computed_tokens=cached.num_computed_tokens[is_known],
            num_new_blocks=cached.num_new_blocks[is_known],
            new_block_ids=cached.new_block_ids[:, np.repeat(is_known, cached.num_new_blocks)],
        )

    def _set_drafts(self, rows: Ints, drafts: DraftTokens | None) -> None:
        """Replace the drafts of the requests in the slots `rows`; drafts of requests that were set aside are skipped."""
        if drafts is None:
            self._batch.set_drafts(rows, _NONE, _NONE, _NONE)
            return
        if int(drafts.token_ids.max(initial=0)) >= self._vocab_size:
            raise InvalidRequest(f"A draft is not in the vocabulary of {self._vocab_size} tokens; padding is not supported.")
        is_known = np.array([self._batch.slot_of(handle) is not None for handle in drafts.handles.tolist()], np.bool_)
        slots = np.array(self._batch.slots_of(drafts.handles[is_known].tolist()), np.int64)
        token_ids = drafts.token_ids[np.repeat(is_known, drafts.num_tokens)]
        self._batch.set_drafts(rows, slots, drafts.num_tokens[is_known], token_ids)
        if self._has_states:
            self._check_blocks(slots)

    def _check_blocks(self, slots: Ints) -> None:
        """Raise InvalidRequest if drafts go beyond the block of the last known token, where the state is."""
        batch, last = self._batch, self._batch.num_tokens[slots] - 1
        for slot in slots[last // batch.block_size != (last + batch.num_drafts[slots]) // batch.block_size].tolist():
            raise InvalidRequest(
                f"The plan has {batch.num_drafts[slot]} drafts after token {batch.num_tokens[slot] - 1} of request "
                f"{batch.handles[slot]}, beyond the block of {batch.block_size} tokens that has its state."
            )

    def _drop_drafts(self, slots: Ints) -> Ints:
        """Remove the drafts beyond MOST_DRAFTS_WITH_STATES, as if they were rejected; return their number for each slot."""
        num_drafts = self._batch.num_drafts[slots]
        num_before = np.cumsum(num_drafts) - num_drafts
        kept = np.clip(MOST_DRAFTS_WITH_STATES - num_before, 0, num_drafts)
        self._batch.num_drafts[slots] = kept
        dropped: Ints = num_drafts - kept
        return dropped

    def _check_rows(self, rows: ScheduledRows) -> None:
        """Raise InvalidRequest unless each request has one row, within max_model_len and its known tokens and blocks."""
        batch, ends = self._batch, rows.num_computed + rows.num_scheduled
        num_tokens = batch.num_tokens[rows.slots] + batch.num_drafts[rows.slots]
        num_blocks = batch.num_blocks[rows.slots]
        most_tokens = np.minimum(num_tokens, batch.max_model_len)
        fits = (rows.num_scheduled > 0) & (ends <= most_tokens) & (ends <= num_blocks * batch.block_size)
        for row in np.flatnonzero(~fits).tolist():
            handle = batch.handles[rows.slots[row]]
            raise InvalidRequest(
                f"The plan of request {handle} ends at token {ends[row]} after {rows.num_scheduled[row]} tokens, but the "
                f"worker knows {num_tokens[row]} tokens and {num_blocks[row]} blocks of {batch.block_size}, and "
                f"max_model_len is {batch.max_model_len}."
            )
        if len(set(rows.slots.tolist())) != len(rows.slots):
            raise InvalidRequest("The plan names a request twice.")


def _joined(column: Ints, more: Iterable[int]) -> Ints:
    return np.concatenate([column, np.array(list(more), np.int64)])


def _largest_id(sampling: SamplingSpec) -> int:
    ids = chain(
        sampling.logit_bias,
        sampling.allowed_token_ids,
        sampling.stop_token_ids,
        sampling.logprob_token_ids,
        sampling.thinking_start_ids,
        sampling.thinking_end_ids,
        *sampling.bad_words,
    )
    return max(ids, default=0)
