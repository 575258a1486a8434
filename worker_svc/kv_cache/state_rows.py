"""State rows: the blocks that a step's states are read from and written to, for a KV group of layers with states.

Built once per step and group. The state after n tokens is in the block of token n - 1. A step reads it there, and writes the
state after its last token to the block of that token. It also writes the state at the end of each block that the block table
contains; the engine core keeps such blocks for the prefix cache.

Draft tokens may be rejected, and a state cannot be taken back. So a step writes the state after a row's last known token, and
computes the drafts on a copy. After verification, `settle` repeats the changes of the accepted drafts. The engine core plans
no drafts beyond the block of the last known token. Dims: D decode rows, P inputs and S values of a state layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepInputs

Advance = Callable[[torch.Tensor, torch.Tensor], object]
"""Function (inputs [1, P], states [1, S]) that changes a state as one token does."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start..stop of the step; the state after them is written to the block `target`."""

    start: int
    stop: int
    target: int


@dataclass(frozen=True, slots=True)
class StateChunk:
    """One sequence's tokens of the step.

    Attributes:
        source: block of the state before them; None: no state yet.
        segments: the known tokens, as segments in order.
        drafts: the tokens start..stop of the step that follow as drafts; None: no drafts.
    """

    source: int | None
    segments: tuple[Segment, ...]
    drafts: slice | None = None


@dataclass(frozen=True, slots=True)
class _DraftedRow:
    """A row with drafts: its slot, the number of its tokens before the drafts, and the block of its state."""

    slot: int
    num_known: int
    target: int


@dataclass(frozen=True, slots=True)
class _Drafted:
    """The drafts of a row in a layer: the layer's inputs [drafts, P] for them, its step, and its cache [num_blocks, S]."""

    row: _DraftedRow
    inputs: torch.Tensor
    advance: Advance
    cache: torch.Tensor


class DraftedStates:
    """The drafts of a step's rows, as far as states depend on them. Each layer adds its own; nothing stays after `settle`.

    Args:
        rows: the rows with drafts, in the order of the chunks with drafts.
    """

    def __init__(self, rows: Sequence[_DraftedRow]) -> None:
        self._rows, self._layers = rows, list[_Drafted]()

    def add(self, inputs: Sequence[torch.Tensor], advance: Advance, cache: torch.Tensor) -> None:
        """Add a layer's inputs [drafts, P] for each row."""
        self._layers += [_Drafted(row, its, advance, cache) for row, its in zip(self._rows, inputs, strict=True)]

    def settle(self, batch: InputBatch) -> None:
        """Change the states as the accepted drafts do; the batch contains the sampled tokens of all rows that did not fail."""
        for drafted in self._layers:
            row = drafted.row
            # The last token of a row is sampled after the accepted drafts; no step has computed it.
            num_accepted = int(batch.num_tokens[row.slot]) - 1 - row.num_known
            if num_accepted > 0:
                state = drafted.cache[row.target].clone()
                for place in range(num_accepted):
                    drafted.advance(drafted.inputs[place, None], state[None])
                drafted.cache[row.target] = state
        self._layers.clear()


@dataclass(frozen=True, slots=True)
class StateRows:
    """The states of a step.

    Attributes:
        sources, targets: [D] int64, blocks that the decode rows, the first D tokens, read and write.
        begun: [N] int64, the decode rows that have no state yet.
        chunks: the chunks of the other rows.
        drafted: the drafts in the chunks.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    begun: torch.Tensor
    chunks: tuple[StateChunk, ...]
    drafted: DraftedStates = field(default_factory=lambda: DraftedStates(()))


def build_state_rows(inputs: StepInputs, batch: Tables, group: int) -> StateRows:
    """Return the blocks of a step's states.

    Args:
        inputs: the step's inputs.
        batch: contains the block tables, and the numbers of drafts.
        group: number of the KV group.
    """
    tables, size, num_decodes = batch.block_tables[group, inputs.slots], batch.block_size, inputs.num_decodes
    num_drafts = batch.num_drafts[inputs.slots]
    ends = inputs.num_computed + inputs.num_scheduled - num_drafts
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
                segments=tuple(_segments(inputs, row, int(ends[row]), tables[row], size)),
                drafts=_drafts(inputs, row, int(num_drafts[row])),
            )
            for row in range(num_decodes, len(tables))
        ),
        drafted=DraftedStates(
            [
                _DraftedRow(int(inputs.slots[row]), int(ends[row]), int(targets[row]))
                for row in range(num_decodes, len(tables))
                if num_drafts[row]
            ]
        ),
    )


def _drafts(inputs: StepInputs, row: int, num_drafts: int) -> slice | None:
    end = int(inputs.first_token[row] + inputs.num_scheduled[row])
    return slice(end - num_drafts, end) if num_drafts else None


def _segments(inputs: StepInputs, row: int, end: int, table: np.ndarray, block_size: int) -> Iterator[Segment]:
    """Yield the segments of a row's tokens up to position `end`."""
    computed, first = int(inputs.num_computed[row]), int(inputs.first_token[row])
    start = computed
    for stop in _ends_of_blocks(table, computed, end, block_size):
        yield Segment(first + start - computed, first + stop - computed, int(table[(stop - 1) // block_size]))
        start = stop


def _ends_of_blocks(table: np.ndarray, start: int, stop: int, block_size: int) -> list[int]:
    """Return the ends before `stop` of the table's blocks (without null blocks) from token `start` on, and `stop`."""
    indices: Ints = np.arange(start // block_size, (stop - 1) // block_size)
    return [*((indices[table[indices] != 0] + 1) * block_size).tolist(), stop]
