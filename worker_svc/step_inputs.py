"""Step inputs: from the rows of a plan to the arrays that one forward pass needs.

Called by the model runner once per step, on the compute thread. Knows the input batch; knows nothing of tensors or models.
Rows are ordered decodes first (longest first), then prefill chunks: attention then works on contiguous slices, and answers go
by handle.
"""

from dataclasses import dataclass

import numpy as np

from tetrad.worker_svc.input_batch import InputBatch
from tetrad.worker_svc.plan import Ints


@dataclass(frozen=True, slots=True)
class StepInputs:
    """R requests with T tokens in all. `first_token[r]` is where request r's tokens begin in the columns over T."""

    slots: Ints  # [R]
    num_computed: Ints  # [R], tokens whose KV exists before this step
    num_scheduled: Ints  # [R]
    first_token: Ints  # [R]
    num_decodes: int  # the first rows, with one token each
    token_ids: Ints  # [T]
    positions: Ints  # [T]
    slot_mapping: Ints  # [T], block id * block size + offset
    sampling_rows: Ints  # rows whose last token is the last one known

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)


def build_step_inputs(batch: InputBatch, slots: Ints, num_computed: Ints, num_scheduled: Ints) -> StepInputs:
    """Order the rows and gather their tokens, positions and KV slots."""
    order = np.lexsort((-num_computed, num_scheduled > 1))
    slots, num_computed, num_scheduled = slots[order], num_computed[order], num_scheduled[order]
    ends = np.cumsum(num_scheduled)
    first_token = ends - num_scheduled
    num_decodes = int((num_scheduled == 1).sum())
    if num_decodes == len(slots):
        rows, positions = slots, num_computed
    else:
        rows = np.repeat(slots, num_scheduled)
        positions = np.arange(int(ends[-1])) + np.repeat(num_computed - first_token, num_scheduled)
    size = batch.block_size
    return StepInputs(
        slots=slots,
        num_computed=num_computed,
        num_scheduled=num_scheduled,
        first_token=first_token,
        num_decodes=num_decodes,
        token_ids=batch.token_ids[rows, positions].astype(np.int64),
        positions=positions,
        slot_mapping=batch.block_tables[rows, positions // size].astype(np.int64) * size + positions % size,
        sampling_rows=np.flatnonzero(num_computed + num_scheduled == batch.num_tokens[slots]),
    )
