"""Orders: messages by which a leader has every member compute its part of a step, as arrays of integers and floats.

A member keeps no requests: an order contains all inputs of the member's part of a step. The leader alone handles sampling,
drafts, constraints and failed requests.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs

_NO_PLACES = np.zeros((2, 0), np.int64)


class Kind(IntEnum):
    """The kind of an order, its first number."""

    FORWARD = 0
    LOGITS = 1
    ARGMAX = 2
    MOVE_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """An Order: a kind, its integers and, for LOGITS and ARGMAX, hidden states [N, hidden].

    The integers of LOGITS and ARGMAX are the adapter ids of the rows [N]; empty: no row has an adapter.
    """

    kind: Kind
    numbers: npt.NDArray[np.int64]
    hidden: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Block tables [G, R, P] of a step's rows: the part of an input batch that attention reads."""

    block_tables: npt.NDArray[np.int32]
    block_size: int

    @property
    def num_drafts(self) -> Ints:
        """Zeros: members do not know which tokens are drafts."""
        return np.zeros(self.block_tables.shape[1], np.int64)


def decode_model_order(numbers: npt.NDArray[np.int64], hidden: torch.Tensor | None) -> ModelOrder:
    """Return the order of these integers and floats."""
    return ModelOrder(Kind(int(numbers[0])), numbers[1:], hidden)


def encode_step(inputs: StepInputs, batch: Tables) -> npt.NDArray[np.int64]:
    """Return the numbers of a FORWARD order; the caller appends the adapter ids of the tokens [T] if a token has an adapter."""
    num_pages = int(-(-(inputs.num_computed + inputs.num_scheduled).max() // batch.block_size))
    tables = batch.block_tables[:, inputs.slots, :num_pages]
    head = [Kind.FORWARD, *tables.shape, inputs.num_decodes, batch.block_size]
    columns = [head, inputs.num_computed, inputs.num_scheduled, inputs.token_ids, tables.reshape(-1)]
    return np.concatenate([np.asarray(each, np.int64) for each in columns])


def decode_step(numbers: npt.NDArray[np.int64]) -> tuple[StepInputs, BlockTables, Ints]:
    """Return a step's inputs, its block tables and the adapter ids of its tokens (empty: none); slots are numbered from 0."""
    num_groups, num_rows, num_pages, num_decodes, block_size = numbers[:5].tolist()
    num_computed, num_scheduled, rest = np.split(numbers[5:], [num_rows, 2 * num_rows])
    num_tokens = int(num_scheduled.sum())
    token_ids, tables, lora_ids = np.split(rest, [num_tokens, num_tokens + num_groups * num_rows * num_pages])
    tables = tables.reshape(num_groups, num_rows, num_pages)
    rows, ends = np.arange(num_rows), np.cumsum(num_scheduled)
    owners = np.repeat(rows, num_scheduled)
    positions = np.arange(num_tokens) + np.repeat(num_computed - (ends - num_scheduled), num_scheduled)
    inputs = StepInputs(
        slots=rows,
        num_computed=num_computed,
        num_scheduled=num_scheduled,
        first_token=ends - num_scheduled,
        num_decodes=num_decodes,
        num_tokens=num_tokens,
        sampling_rows=rows[:0],  # only the leader samples
        token_ids=token_ids,
        positions=positions,
        slot_mappings=tables[:, owners, positions // block_size] * block_size + positions % block_size,
    )
    return inputs, BlockTables(tables.astype(np.int32), block_size), lora_ids  # int32, as in an input batch


def encode_moves(plan: SchedulerOutput) -> npt.NDArray[np.int64] | None:
    """Return the numbers of a MOVE_BLOCKS order; None if the plan copies no blocks between tiers."""
    if plan.swap_out is None and plan.swap_in is None:
        return None
    out, back = (_NO_PLACES if places is None else np.stack(places) for places in (plan.swap_out, plan.swap_in))
    return np.concatenate([[Kind.MOVE_BLOCKS, out.shape[1]], out.reshape(-1), back.reshape(-1)]).astype(np.int64)


def decode_moves(numbers: npt.NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Return the copies [2, N] to the second tier and the copies [2, N] back; row 0 has the sources, row 1 the destinations."""
    end = 1 + 2 * int(numbers[0])
    return numbers[1:end].reshape(2, -1), numbers[end:].reshape(2, -1)
