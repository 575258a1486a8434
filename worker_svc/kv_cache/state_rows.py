"""State rows: the blocks that a step's states are read from and written to, for a KV group of layers with states.

Built once per step and group. The state after n tokens is in the block of token n - 1. A step reads it there, and writes the
state after its last token to the block of that token. It also writes the state at the end of each block that the block table
contains; the engine core keeps such blocks for the prefix cache.

Draft tokens may be rejected, and a state cannot be taken back. So a step writes the state after a row's last known token, and
computes the drafts on a copy. After verification, `settle` repeats the changes of the accepted drafts; `settle_on_device` does
so where only the device knows which drafts are accepted. The engine core plans no drafts beyond the block of the last known
token. Dims: D decode rows, P inputs and S values of a state layer, R rows with drafts, K drafts of the row with the most.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepInputs

_ROWS_AT_ONCE = 32
"""Number of rows whose states are settled at once on a device: three copies of their states in a layer exist meanwhile."""

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

    @property
    def tokens(self) -> slice:
        """The sequence's tokens of the step, drafts included."""
        return slice(self.segments[0].start, self.segments[-1].stop if self.drafts is None else self.drafts.stop)


@dataclass(frozen=True, slots=True)
class _DraftedRow:
    """A row with drafts: its slot, the number of its tokens before the drafts, and the block of its state."""

    slot: int
    num_known: int
    target: int


@dataclass(frozen=True, slots=True)
class _DraftedLayer:
    """The drafts in a layer: its inputs [drafts, P] for those of each row, its step, and its cache [num_blocks, S]."""

    inputs: Sequence[torch.Tensor]
    advance: Advance
    cache: torch.Tensor


class DraftedStates:
    """The drafts of a step's rows, as far as states depend on them. Each layer adds its own; nothing stays after `settle`.

    Args:
        rows: the rows with drafts, in the order of the chunks with drafts.
    """

    def __init__(self, rows: Sequence[_DraftedRow]) -> None:
        self._rows, self._layers = rows, list[_DraftedLayer]()

    @property
    def slots(self) -> Ints:
        """The slots [R] of the rows."""
        return np.array([row.slot for row in self._rows], np.int64)

    @property
    def targets(self) -> Ints:
        """The blocks [R] that have the states of the rows."""
        return np.array([row.target for row in self._rows], np.int64)

    def add(self, inputs: Sequence[torch.Tensor], advance: Advance, cache: torch.Tensor) -> None:
        """Add a layer's inputs [drafts, P] for each row."""
        if inputs:
            self._layers.append(_DraftedLayer(inputs, advance, cache))

    def settle(self, num_tokens: Ints) -> None:
        """Change the states as the accepted drafts do; `num_tokens` [slots] includes the sampled tokens."""
        for layer in self._layers:
            for row, inputs in zip(self._rows, layer.inputs, strict=True):
                # The last token of a row is sampled after the accepted drafts; no step has computed it.
                num_accepted = int(num_tokens[row.slot]) - 1 - row.num_known
                if num_accepted > 0:
                    state = layer.cache[row.target].clone()
                    for place in range(num_accepted):
                        layer.advance(inputs[place, None].float(), state[None])
                    layer.cache[row.target] = state
        self._layers.clear()

    def settle_on_device(self, targets: torch.Tensor, are_accepted: torch.Tensor) -> None:
        """Change the states as the accepted drafts do, for several rows at once; wait for nothing.

        Args:
            targets: [R], as above, on the device.
            are_accepted: [R, K] bool on the device: whether the draft at a place and all drafts before it are accepted.
        """
        for layer in self._layers:
            for begin in range(0, len(layer.inputs), _ROWS_AT_ONCE):
                rows = slice(begin, begin + _ROWS_AT_ONCE)
                _settle_rows(layer, rows, targets[rows], are_accepted[rows])
        self._layers.clear()


def _settle_rows(layer: _DraftedLayer, rows: slice, targets: torch.Tensor, are_accepted: torch.Tensor) -> None:
    inputs = pad_sequence(list(layer.inputs[rows]), batch_first=True)  # [rows, their most drafts, P]
    states = layer.cache.index_select(0, targets)
    for place in range(inputs.shape[1]):
        changed = states.clone()
        layer.advance(inputs[:, place].float(), changed)
        states = torch.where(are_accepted[:, place, None], changed, states)
    layer.cache.index_copy_(0, targets, states)


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
