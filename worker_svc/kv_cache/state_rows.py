"""State rows: the blocks that a step's states are read from and written to, for a KV group of layers with states.

Built once per step and group. The state after n tokens is in the block of token n - 1. A step reads it there, and writes the
state after its last token to the block of that token. It also writes the state at the end of each block that the block table
contains; the engine core keeps such blocks for the prefix cache. Dims: D decode rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start..stop of the step; the state after them is written to the block `target`."""

    start: int
    stop: int
    target: int


@dataclass(frozen=True, slots=True)
class StateChunk:
    """One sequence's tokens of the step, as segments in order. `source`: block of the state before them; None: no state yet."""

    source: int | None
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class StateRows:
    """The states of a step.

    Attributes:
        sources, targets: [D] int64, blocks that the decode rows, the first D tokens, read and write.
        begun: [N] int64, the decode rows that have no state yet.
        chunks: the chunks of the other rows.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    begun: torch.Tensor
    chunks: tuple[StateChunk, ...]


def build_state_rows(inputs: StepInputs, batch: Tables, group: int) -> StateRows:
    """Return the blocks of a step's states.

    Args:
        inputs: the step's inputs.
        batch: contains the block tables.
        group: number of the KV group.
    """
    tables, size, num_decodes = batch.block_tables[group, inputs.slots], batch.block_size, inputs.num_decodes
    ends = inputs.num_computed + inputs.num_scheduled
    rows = np.arange(len(tables))
    sources = tables[rows, np.maximum(inputs.num_computed - 1, 0) // size].astype(np.int64)
    targets = tables[rows, (ends - 1) // size].astype(np.int64)
    return StateRows(
        sources=torch.from_numpy(sources[:num_decodes]),
        targets=torch.from_numpy(targets[:num_decodes]),
        begun=torch.from_numpy(np.flatnonzero(inputs.num_computed[:num_decodes] == 0)),
        chunks=tuple(
            StateChunk(
                source=int(sources[row]) if inputs.num_computed[row] else None,
                segments=tuple(_segments(inputs, row, tables[row], size)),
            )
            for row in range(num_decodes, len(tables))
        ),
    )


def _segments(inputs: StepInputs, row: int, table: np.ndarray, block_size: int) -> Iterator[Segment]:
    computed, num_tokens = int(inputs.num_computed[row]), int(inputs.num_scheduled[row])
    first = int(inputs.first_token[row])
    start = computed
    for stop in _ends_of_blocks(table, computed, computed + num_tokens, block_size):
        yield Segment(first + start - computed, first + stop - computed, int(table[(stop - 1) // block_size]))
        start = stop


def _ends_of_blocks(table: np.ndarray, start: int, stop: int, block_size: int) -> list[int]:
    """Return the ends before `stop` of the table's blocks (without null blocks) from token `start` on, and `stop`."""
    indices: Ints = np.arange(start // block_size, (stop - 1) // block_size)
    return [*((indices[table[indices] != 0] + 1) * block_size).tolist(), stop]
