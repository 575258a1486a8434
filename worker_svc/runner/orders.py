"""Orders: messages by which a leader has every member compute its part of a step, as arrays of integers and floats.

A member keeps no requests: an order contains all inputs of the member's part of a step, with the rows of its images, since
only the leader has a tower. The leader alone handles sampling, constraints, failed requests and the verification of drafts.
Members with states learn from a further order how many drafts were right, since a state contains all its tokens.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Floats, GivenRows, Ints, SchedulerOutput
from tetrad.worker_svc.core.step_inputs import StepInputs

_NO_PLACES = np.zeros((2, 0), np.int64)


class Kind(IntEnum):
    """The kind of an order, its first number."""

    FORWARD = 0
    LOGITS = 1
    ARGMAX = 2
    MOVE_BLOCKS = 3
    SETTLE_DRAFTS = 4


@dataclass(frozen=True, slots=True)
class ModelOrder:
    """An Order: a kind, its integers and floats.

    The integers of LOGITS and ARGMAX are the adapter ids of the rows [N]; empty: no row has an adapter. Those of SETTLE_DRAFTS
    are the numbers of known tokens [R] of the last step's rows, after the verification of their drafts.

    Attributes:
        hidden: of LOGITS and ARGMAX, hidden states [N, hidden]. Of FORWARD, given rows [(1 + L) * N, hidden]: N embeddings,
            then those that are added behind each of the first L layers; None: none, or this rank's layers read none.
    """

    kind: Kind
    numbers: npt.NDArray[np.int64]
    hidden: torch.Tensor | None


class MemberStep(NamedTuple):
    """A member's part of a step: slots are numbered from 0.

    Attributes:
        inputs, tables: the inputs and block tables of the step's rows.
        given: rows that are given; None: none, or this rank's layers read none.
        lora_ids: the adapter ids of the tokens [T]; empty: none.
    """

    inputs: StepInputs
    tables: "BlockTables"
    given: GivenRows | None
    lora_ids: Ints


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Block tables [G, R, P] and numbers of drafts [R] of a step's rows: the part of an input batch that layers read."""

    block_tables: npt.NDArray[np.int32]
    block_size: int
    num_drafts: Ints


def decode_model_order(numbers: npt.NDArray[np.int64], hidden: torch.Tensor | None) -> ModelOrder:
    """Return the order of these integers and floats."""
    return ModelOrder(Kind(int(numbers[0])), numbers[1:], hidden)


def encode_step(inputs: StepInputs, batch: Tables) -> npt.NDArray[np.int64]:
    """Return the numbers of a FORWARD order.

    The caller appends the indices of given rows [N], see `encode_rows`, and then the adapter ids of the tokens [T] if a token
    has an adapter.
    """
    num_pages = int(-(-(inputs.num_computed + inputs.num_scheduled).max() // batch.block_size))
    tables = batch.block_tables[:, inputs.slots, :num_pages]
    places = [_NO_PLACES[0] if each is None else each.reshape(-1) for each in (inputs.axes, inputs.ends)]
    head = [Kind.FORWARD, *tables.shape, inputs.num_decodes, batch.block_size, *map(len, places)]
    num_drafts = batch.num_drafts[inputs.slots]
    columns = [head, inputs.num_computed, inputs.num_scheduled, num_drafts, inputs.token_ids, tables.reshape(-1), *places]
    return np.concatenate([np.asarray(each, np.int64) for each in columns])


def encode_rows(given: GivenRows | None) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
    """Return the numbers and the floats of given rows in a FORWARD order."""
    if given is None:
        return np.array([0]), None
    parts = [given.values] if given.deep is None else [given.values, given.deep.reshape(-1, given.values.shape[1])]
    return np.concatenate([[len(given.rows)], given.rows]), torch.from_numpy(np.concatenate(parts))


def decode_step(numbers: npt.NDArray[np.int64], values: torch.Tensor | None = None) -> MemberStep:
    """Return a member's part of a step, from the numbers and the floats of a FORWARD order."""
    num_groups, num_rows, num_pages, num_decodes, block_size, *sizes = numbers[:7].tolist()
    num_computed, num_scheduled, num_drafts, rest = np.split(numbers[7:], [num_rows, 2 * num_rows, 3 * num_rows])
    num_tokens = int(num_scheduled.sum())
    parts = np.cumsum([num_tokens, num_groups * num_rows * num_pages, *sizes]).tolist()
    token_ids, tables, axes, seen_ends, rest = np.split(rest, parts)
    given_rows, lora_ids = rest[1 : 1 + int(rest[0])], rest[1 + int(rest[0]) :]
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
        axes=axes.reshape(3, -1) if len(axes) else None,
        ends=seen_ends if len(seen_ends) else None,
    )
    in_batch = BlockTables(tables.astype(np.int32), block_size, num_drafts)  # int32, as in an input batch
    return MemberStep(inputs, in_batch, None if values is None else _given(given_rows, values.numpy()), lora_ids)


def _given(rows: Ints, values: Floats) -> GivenRows:
    num_rows = len(rows)
    deep = values[num_rows:].reshape(-1, num_rows, values.shape[1])
    return GivenRows(rows, values[:num_rows], deep if len(deep) else None)


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
