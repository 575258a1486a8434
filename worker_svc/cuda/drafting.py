"""Drafting: runs the passes of a draft model or a draft head after a step, launch by launch or as graphs.

Called by the drafters of the device. The first pass is over the tokens of a step. Then each draft is drawn, and read on the
device by the pass that draws the next one. Which of the two kinds a drafter has is decided when it is made.
Dims: R requests, T tokens, B rows of a graph.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.drafts import NO_DRAFTS, Drafts
from tetrad.worker_svc.cuda.graphs import PassGraphs, ladder_to
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer, PassInputs
from tetrad.worker_svc.cuda.row_tables import Table, padded
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.step_graphs import Runs, StepGraphs
from tetrad.worker_svc.kernels.advance_drafts import FIRST_PLACE, SLOT, advance_drafts


class DraftProgram(Protocol):
    """The passes of a draft model or a draft head; they only queue work for the device."""

    inputs: InputGatherer
    """The inputs of its passes."""
    lag: int
    """The pass that reads a draft is at the draft's position, less this number."""
    num_behind: int
    """The number of known tokens that it computes after a decode step, besides those that were drafts."""
    hidden_size: int
    dtype: torch.dtype

    def compute(self, inputs: PassInputs) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a step's tokens."""

    def continue_from(self, hidden: torch.Tensor, inputs: PassInputs) -> torch.Tensor:
        """Return the hidden states [R, hidden] of drafts, each drawn from one of the hidden states [R, hidden]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, V] float32 of hidden states [R, hidden]."""


class Drafting(Protocol):
    """The passes of one drafter."""

    num_graphs: int
    """The number of graphs that `record` records."""

    def compute(self, rows: StepRows) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a step's tokens, valid until the next call."""

    def draft(self, slots: Ints, counts: Ints, hidden: torch.Tensor, last: Ints) -> Drafts:
        """Return `counts` [R] drafts, each at least one, of the requests in `slots` [R].

        The drafts are written behind the requests' known tokens. `last` [R] are the indices of their newest tokens in
        `hidden` [T, hidden], the result of `compute`.
        """

    def record(self, report: Callable[[], None]) -> None:
        """Record the graphs."""

    def rehearse(self) -> None:
        """Run what `record` records, to measure its memory."""


class LaunchedDrafting:
    """A Drafting that launches kernel by kernel.

    Args:
        runner: the runner of the target model.
        program: the drafter's passes.
    """

    num_graphs = 0

    def __init__(self, runner: CudaModelRunner, program: DraftProgram) -> None:
        self._runner, self._program = runner, program
        self._num_tokens, self._upload = runner.batch.num_tokens, runner.accelerator.upload

    def compute(self, rows: StepRows) -> torch.Tensor:
        """See Drafting."""
        return self._program.compute(self._program.inputs.of_rows(rows))

    def draft(self, slots: Ints, counts: Ints, hidden: torch.Tensor, last: Ints) -> Drafts:
        """See Drafting."""
        if not len(slots):
            return NO_DRAFTS
        order = np.argsort(-counts, kind="stable")
        slots, counts = slots[order], counts[order]
        hidden, found = hidden[self._upload(last[order])], []
        for number in range(int(counts[0])):
            going_on = slots[counts > number]
            if number:
                positions = self._num_tokens[going_on] + number - 1 - self._program.lag
                inputs = self._program.inputs.of_rows(single_rows(going_on, positions))
                hidden = self._program.continue_from(hidden[: len(going_on)], inputs)
            found.append(self._draw(hidden, going_on, number))
        return Drafts(slots, counts, found)

    def record(self, report: Callable[[], None]) -> None:
        """Do nothing: there are no graphs."""

    def rehearse(self) -> None:
        """Do nothing: there are no graphs."""

    def _draw(self, hidden: torch.Tensor, slots: Ints, number: int) -> torch.Tensor:
        """Draw a draft [R] for each slot [R], and write it to its place after the slot's known tokens."""
        numbers = np.full(len(slots), number, np.int64)
        tokens = self._runner.sampler.guess(self._program.logits(hidden), slots, numbers)
        self._runner.state.write(slots, numbers, tokens)
        return tokens


class RecordedDrafting:
    """A Drafting with graphs: those of the first pass, and those of all drafts of a step.

    A graph of drafts has all passes for `num_drafts` drafts of each request. Fewer drafts, where a request has no block or no
    position for more, are rows that become padding.

    Args:
        runner: the runner of the target model.
        program: the drafter's passes.
        num_drafts: the number of drafts of a request; steps with another maximum are launched.
    """

    def __init__(self, runner: CudaModelRunner, program: DraftProgram, num_drafts: int) -> None:
        accelerator = runner.accelerator
        self._runner, self._program, self._num_drafts = runner, program, num_drafts
        self._upload, self._num_tokens = accelerator.upload, runner.batch.num_tokens
        self._launched = LaunchedDrafting(runner, program)
        self._steps = StepGraphs(accelerator, runner.batch, runner.layout, program.inputs)
        sizes = ladder_to(runner.layout.max_num_seqs)
        self._drafts = PassGraphs(accelerator, sizes=sizes, pack=_padded_drafts, nothing=_NO_ROWS, kinds=(False, True))
        self.num_graphs = self._steps.num_graphs + self._drafts.num_graphs
        most_tokens, hidden_size = self._steps.most_tokens, program.hidden_size
        self._hidden = torch.zeros(most_tokens, hidden_size, dtype=program.dtype, device=accelerator.device)
        self._newest = torch.zeros(sizes[-1], hidden_size, dtype=program.dtype, device=accelerator.device)
        self._found = torch.zeros(num_drafts, sizes[-1], dtype=torch.int32, device=accelerator.device)

    def compute(self, rows: StepRows) -> torch.Tensor:
        """See Drafting."""
        graph = self._steps.choose(rows, num_behind=self._program.num_behind)
        if graph is None:
            return self._launched.compute(rows)
        graph.replay(False)
        return self._hidden[: rows.num_tokens]

    def draft(self, slots: Ints, counts: Ints, hidden: torch.Tensor, last: Ints) -> Drafts:
        """See Drafting."""
        if not 0 < len(slots) <= self._drafts.largest or int(counts.max()) != self._num_drafts:
            return self._launched.draft(slots, counts, hidden, last)
        torch.index_select(hidden, 0, self._upload(last), out=self._newest[: len(slots)])
        table = np.stack([slots, self._num_tokens[slots], counts], 1).astype(np.int32)
        self._drafts.run(table, len(slots), self._runner.sampler.draws(slots))
        return Drafts(slots, counts, [self._found[:, : len(slots)]])

    def record(self, report: Callable[[], None]) -> None:
        """See Drafting."""
        self._steps.record(Runs(self._run_step, self._run_step), report)
        self._drafts.record(self._run_drafts, report)

    def rehearse(self) -> None:
        """See Drafting."""
        self._steps.rehearse(Runs(self._run_step, self._run_step))
        self._drafts.rehearse(self._run_drafts)

    def _run_step(self, inputs: PassInputs, kind: bool) -> None:  # noqa: ARG002 - drafters have no adapters
        """Queue the first pass; see Run."""
        self._hidden[: len(inputs.token_ids)].copy_(self._program.compute(inputs))

    def _run_drafts(self, packed: torch.Tensor, size: int, draws: bool) -> None:
        """Queue all drafts of rows [B, 3], see advance_drafts; some rows may be padding."""
        program, state, rows = self._program, self._runner.state, packed.view(size, 3)
        slots, first = rows[:, SLOT].clamp(min=0).long(), rows[:, FIRST_PLACE].long()
        hidden = self._newest[:size]
        for number in range(self._num_drafts):
            logits = program.logits(hidden)
            found = self._found[number, :size]
            found.copy_(self._runner.sampler.guess_recorded(logits, slots, first + number, draws=draws))
            table = advance_drafts(rows, found, state.token_ids, number=number, lag=program.lag)
            if number + 1 < self._num_drafts:
                hidden = program.continue_from(hidden, program.inputs.of_decodes(table))


def drafting_of(runner: CudaModelRunner, program: DraftProgram, num_drafts: int, *, is_recorded: bool) -> Drafting:
    """Return a drafter's Drafting; `is_recorded`: its passes can be recorded, and `num_drafts` is known."""
    return RecordedDrafting(runner, program, num_drafts) if is_recorded else LaunchedDrafting(runner, program)


def single_rows(slots: Ints, positions: Ints) -> StepRows:
    """Return the rows of a step of one token for each slot [R], at its position [R]."""
    num_rows = len(slots)
    return StepRows(
        slots=slots,
        num_computed=positions,
        num_scheduled=np.ones(num_rows, np.int64),
        first_token=np.arange(num_rows),
        num_decodes=num_rows,
        num_tokens=num_rows,
        sampling_rows=np.arange(num_rows),
    )


def _padded_drafts(table: Table, size: int) -> Table:
    return padded(table, (-1, 0, 0), size)


_NO_ROWS: Table = np.empty((0, 3), np.int32)
