"""Draft progress: counts each request's tokens that a draft model has computed, and chooses those to compute after a step.

Used by the drafting runners of all devices, on the compute thread. A rejected draft takes the progress back. After a step
without proposals the draft model computes nothing; the next step with proposals computes the missing tokens. So a block of the
prefix cache may have keys and values of the target model alone: a request that begins with it computes it for the draft model.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints, NewRequest, SchedulerOutput
from tetrad.worker_svc.runner.written_blocks import WrittenBlocks


@dataclass(frozen=True, slots=True)
class DraftRow:
    """Tokens of one request that the draft model computes.

    Attributes:
        handle, slot: the request.
        num_computed: number of tokens whose keys and values it has.
        num_tokens: number of tokens to compute, at least 1.
        is_ready: whether the last of them is the request's newest token, so that drafts can follow it.
    """

    handle: int
    slot: int
    num_computed: int
    num_tokens: int
    is_ready: bool


class DraftProgress:
    """The progress of a draft model.

    Args:
        batch: the requests.
        max_tokens: maximum number of tokens of a step.
    """

    def __init__(self, batch: InputBatch, max_tokens: int) -> None:
        self._batch, self._max_tokens = batch, max_tokens
        self._num_computed: dict[int, int] = {}  # handle -> number of tokens whose keys and values the draft model has
        self._num_written: dict[int, int] = {}  # handle -> number of its first blocks that are in _written
        self._written = WrittenBlocks()

    def clear(self) -> None:
        """Forget all requests. Blocks keep their content."""
        self._num_computed.clear()
        self._num_written.clear()

    def note(self, plan: SchedulerOutput) -> None:
        """Add the new requests of a plan, and remove those that have ended. Each plan must be noted."""
        for handle in plan.removed_handles:
            self._num_computed.pop(handle, None)
            self._num_written.pop(handle, None)
        self._written.move(plan)
        self._written.discard(plan.cached.new_block_ids[0].tolist())
        # The step before may have rejected drafts: only tokens that the plan counts as computed are the request's.
        for handle, num_computed in zip(plan.cached.handles.tolist(), plan.cached.num_computed_tokens.tolist(), strict=True):
            self._num_computed[handle] = min(self._num_computed.get(handle, 0), num_computed)
        for new in plan.new_requests:
            self._note_new(new, computes=plan.num_spec_tokens > 0)

    def _note_new(self, new: NewRequest, *, computes: bool) -> None:
        """Add a new request; `computes`: the draft model computes its tokens after this step."""
        size, blocks = self._batch.block_size, new.block_ids[0].tolist()
        self._written.discard(blocks[new.num_computed_tokens // size :])
        num_written = self._written.num_first(blocks)
        num_computed = self._num_computed[new.handle] = min(new.num_computed_tokens, num_written * size)
        if computes and num_computed == new.num_computed_tokens:
            # A further new request of the plan may begin with these blocks.
            num_written = (num_computed + new.num_scheduled_tokens) // size
            self._written.add(blocks[:num_written])
        self._num_written[new.handle] = num_written

    def rows(self, plan: SchedulerOutput, sampled: Collection[int]) -> list[DraftRow]:
        """Return the tokens to compute after a step, and count them as computed.

        Tokens beyond the maximum of a step wait for the next step. Requests that failed in the step are left out.

        Args:
            plan: the step's plan.
            sampled: handles of the requests that have new tokens, which the batch counts already.
        """
        ends = dict(
            zip(
                plan.cached.handles.tolist(),
                (plan.cached.num_computed_tokens + plan.cached.num_scheduled_tokens).tolist(),
                strict=True,
            )
        )
        ends.update((new.handle, new.num_computed_tokens + new.num_scheduled_tokens) for new in plan.new_requests)
        new = {each.handle for each in plan.new_requests}
        handles, rows, left = set(sampled), [], self._max_tokens
        for handle, planned_end in ends.items():
            slot = self._batch.slot_of(handle)
            if slot is None:
                continue
            end = int(self._batch.num_tokens[slot]) if handle in handles else planned_end
            # The tokens proposed after the previous step may differ from the sampled ones.
            num_computed = min(self._num_computed.get(handle, 0), end - 1)
            if handle in new:
                num_computed = min(num_computed, self._num_first_written(slot, num_computed))
            # The last token may belong to a new block, which only the next plan allocates.
            num_slots = int(self._batch.num_blocks[slot]) * self._batch.block_size
            count = min(end, num_slots, num_computed + left) - num_computed
            self._num_computed[handle] = num_computed + max(count, 0)
            self._note_written(handle, slot)
            if count > 0:
                # A request of max_model_len tokens has sampled its last one, so there is no place for a draft.
                is_ready = handle in handles and num_computed + count == end <= self._batch.max_model_len
                rows.append(DraftRow(handle, slot, num_computed, count, is_ready))
                left -= count
        return rows

    def _note_written(self, handle: int, slot: int) -> None:
        """Note the blocks whose tokens the draft model has all computed; these are known tokens, not drafts."""
        before, now = self._num_written.get(handle, 0), self._num_computed[handle] // self._batch.block_size
        if now != before:
            table = self._batch.block_tables[0, slot]
            self._written.add(table[before:now].tolist())
            self._written.discard(table[now:before].tolist())  # the step had no room for all tokens of a new request
            self._num_written[handle] = now

    def _num_first_written(self, slot: int, num_tokens: int) -> int:
        """Return how many of a request's first tokens are in written blocks; a step may lack the room for those of another."""
        size = self._batch.block_size
        return self._written.num_first(self._batch.block_tables[0, slot, : num_tokens // size].tolist()) * size

    def advance(self, slots: Ints, counts: Ints) -> None:
        """Count `counts` [R] more tokens of the requests in `slots` [R] as computed."""
        for handle, count in zip(self._batch.handles[slots].tolist(), counts.tolist(), strict=True):
            self._num_computed[handle] += count


def columns_of(rows: Sequence[DraftRow]) -> tuple[Ints, Ints, Ints]:
    """Return slots, numbers of computed tokens, and numbers of tokens to compute."""
    columns = np.array([(row.slot, row.num_computed, row.num_tokens) for row in rows], np.int64).T
    return columns[0], columns[1], columns[2]


def ends_of_drafts(batch: InputBatch, slots: Ints) -> Ints:
    """Return for each request the first place [R] whose token cannot be computed for a draft after it.

    A place needs a block, and a sequence has room for one more token.
    """
    ends: Ints = np.minimum(batch.num_blocks[slots] * batch.block_size, batch.max_model_len - 1)
    return ends
