"""Step graphs: the graphs of one model's passes over the tokens of steps, and the choice of the graph that serves a step.

Used by the runner and by drafters; each has graphs of its own, over one batch. The choice is made here alone:

    a step that only decodes or verifies drafts   a graph of decodes: each token is a row, which reads its own list of keys
    another step of up to 1,024 tokens            a graph of mixed steps: prompts are tiles of queries
    a larger one                                  none
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.graphs import LEAST_ROWS, TOKENS, PassGraphs, ladder_to
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer, PassInputs
from tetrad.worker_svc.cuda.row_tables import NO_ROWS, padded_decodes, table_of
from tetrad.worker_svc.cuda.verification import spread

Run = Callable[[PassInputs, bool], None]
"""Function (inputs of T tokens, some of which may be padding, kind) that queues a pass; it writes to fixed places."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What graphs record: the passes of steps that only decode, and those of mixed steps."""

    decodes: Run
    mixed: Run


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The graph that serves a step.

    Attributes:
        is_mixed: whether it records a mixed step. Its tokens are the step's, in order; then the padding.
        replay: replays the graph of this kind.
    """

    is_mixed: bool
    replay: Callable[[bool], None]


class StepGraphs:
    """The graphs of one model's passes over steps.

    Args:
        accelerator: records and replays the graphs.
        batch: the requests.
        layout: limits of a step.
        inputs: gathers the inputs of the passes.
        kinds: for each kind of graph, whether its rows have adapters.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        batch: InputBatch,
        layout: KvLayout,
        inputs: InputGatherer,
        kinds: Sequence[bool] = (False,),
    ) -> None:
        self._batch, self._inputs, self._mixed_layout = batch, inputs, inputs.mixed_layout()
        sizes = ladder_to(max(layout.max_num_seqs, LEAST_ROWS))
        self._decodes = PassGraphs(accelerator, sizes=sizes, pack=padded_decodes, nothing=table_of(NO_ROWS), kinds=kinds)
        tokens, pack = ladder_to(layout.max_num_batched_tokens, TOKENS), self._mixed_layout.pack
        self._mixed = PassGraphs(accelerator, sizes=tokens, pack=pack, nothing=NO_ROWS, kinds=kinds)
        self.num_graphs = self._decodes.num_graphs + self._mixed.num_graphs
        """The number of graphs that `record` records."""
        self.most_decodes, self.most_tokens = sizes[-1], max(sizes[-1], tokens[-1])
        """The number of tokens of the largest graph of decodes, and of the largest graph."""

    def choose(self, rows: StepRows, *, num_behind: int = 1, needs_hidden: bool = False) -> StepGraph | None:
        """Return the graph that serves a step; None: no graph does.

        Args:
            rows: the rows of the step.
            num_behind: the number of known tokens, besides drafts, that a decoding request computes in a step.
            needs_hidden: only a graph of mixed steps serves the step.
        """
        are_decodes = (rows.num_scheduled <= num_behind + self._batch.num_drafts[rows.slots]).all()
        if are_decodes and rows.num_tokens <= self._decodes.largest and not needs_hidden:
            return StepGraph(False, partial(self._decodes.run, table_of(spread(rows)), rows.num_tokens))
        if rows.num_tokens <= self._mixed.largest:
            return StepGraph(True, partial(self._mixed.run, rows, rows.num_tokens))
        return None

    def record(self, runs: Runs, report: Callable[[], None]) -> None:
        """Record the graphs, the larger ones first."""
        self._mixed.record(partial(self._run_mixed, runs.mixed), report)
        self._decodes.record(partial(self._run_decodes, runs.decodes), report)

    def rehearse(self, runs: Runs) -> None:
        """Run what `record` records, to measure its memory."""
        self._mixed.rehearse(partial(self._run_mixed, runs.mixed))
        self._decodes.rehearse(partial(self._run_decodes, runs.decodes))

    def _run_decodes(self, run: Run, packed: torch.Tensor, size: int, kind: bool) -> None:
        run(self._inputs.of_decodes(packed.view(size, -1)), kind)

    def _run_mixed(self, run: Run, packed: torch.Tensor, size: int, kind: bool) -> None:
        run(self._inputs.of_mixed(self._mixed_layout.view(packed, size)), kind)
