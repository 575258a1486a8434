"""Step inputs: builds the arrays of one forward pass from the rows of a plan.

Called by the model runner once per step, on the compute thread. Knows the input batch; knows nothing of tensors or models.
Decodes are the first rows (longest first), then prefill chunks, so that attention works on contiguous slices. Results are
matched to requests by handle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step: R requests with T tokens in total. The tokens of request r begin at index `first_token[r]` of T."""

    slots: Ints  # [R]
    num_computed: Ints  # [R], tokens whose keys and values exist before this step
    num_scheduled: Ints  # [R]
    first_token: Ints  # [R]
    num_decodes: int  # number of rows with one token; they are the first rows
    num_tokens: int  # T
    sampling_rows: Ints  # rows whose last token is the request's last known token, or the last draft after it


class WeightSink(Protocol):
    """Takes the weights with which the tokens of a row attend to the encoder's output."""

    def take(self, layer: int, weights: Any) -> None:
        """Take the weights [heads, tokens, positions] of a layer."""


@dataclass(frozen=True, slots=True)
class StepInputs(StepRows):
    """The rows of a step, with the inputs of each of the T tokens.

    Attributes:
        axes: [3, T] positions of the rotary embedding on the axes time, height and width, of models with M-RoPE; None: each
            token has its position on all axes. `positions` alone places keys and values, and says what a token attends to.
        ends: [T], for each token the position behind the last key that it attends to, in models whose image tokens attend to
            the whole image; all these keys are computed in this step or before it. None: a token attends to no later one.
        encoded: [R], the output of the encoder that a row attends to, as in EncodedItem; None: the row attends to none. Empty:
            no row does.
        sinks: [R], what takes the weights of a row's cross-attention; None: nothing does. Empty: nothing takes any.
    """

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    slot_mappings: Ints  # [G, T]: for each KV group, block id * block size + offset
    axes: Ints | None = None
    ends: Ints | None = None
    encoded: Sequence[Any] = ()
    sinks: Sequence[WeightSink | None] = ()


def order_rows(batch: InputBatch, slots: Ints, num_computed: Ints, num_scheduled: Ints) -> StepRows:
    """Return the rows of a step in order: decodes first (longest first), then prefill chunks."""
    order = np.lexsort((-num_computed, num_scheduled > 1))
    slots, num_computed, num_scheduled = slots[order], num_computed[order], num_scheduled[order]
    ends = np.cumsum(num_scheduled)
    return StepRows(
        slots=slots,
        num_computed=num_computed,
        num_scheduled=num_scheduled,
        first_token=ends - num_scheduled,
        num_decodes=int((num_scheduled == 1).sum()),
        num_tokens=int(ends[-1]),
        sampling_rows=np.flatnonzero(num_computed + num_scheduled == batch.num_tokens[slots] + batch.num_drafts[slots]),
    )


def build_step_inputs(batch: InputBatch, slots: Ints, num_computed: Ints, num_scheduled: Ints) -> StepInputs:
    """Order the rows, and gather their tokens, positions and KV slots."""
    return step_inputs_of(batch, order_rows(batch, slots, num_computed, num_scheduled))


def step_inputs_of(batch: InputBatch, rows: StepRows) -> StepInputs:
    """Gather the tokens, positions and KV slots of rows; a token that exists only on a device is 0 here."""
    if rows.num_decodes == len(rows.slots):
        owners, positions = rows.slots, rows.num_computed
    else:
        owners = np.repeat(rows.slots, rows.num_scheduled)
        positions = np.arange(rows.num_tokens) + np.repeat(rows.num_computed - rows.first_token, rows.num_scheduled)
    size = batch.block_size
    return StepInputs(
        slots=rows.slots,
        num_computed=rows.num_computed,
        num_scheduled=rows.num_scheduled,
        first_token=rows.first_token,
        num_decodes=rows.num_decodes,
        num_tokens=rows.num_tokens,
        sampling_rows=rows.sampling_rows,
        token_ids=batch.token_ids[owners, positions].astype(np.int64),
        positions=positions,
        slot_mappings=batch.block_tables[:, owners, positions // size].astype(np.int64) * size + positions % size,
    )
