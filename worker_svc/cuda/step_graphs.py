"""Step graphs: the graphs of one model's passes over the tokens of steps, and the choice of the graph that serves a step.

Used by the runner and by drafters; each has graphs of its own, over one batch. The choice is made here alone. A step that only
decodes or verifies drafts has a graph with a row for each token, whose shape depends on nothing but their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.graphs import LEAST_ROWS, PassGraphs, ladder_to
from tetrad.worker_svc.cuda.row_tables import NO_ROWS, padded_decodes, table_of
from tetrad.worker_svc.cuda.verification import spread

RunDecodes = Callable[[torch.Tensor, bool], None]
"""Function (rows [B, 5] of one token each, kind) that queues a pass; see Work."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The graph that serves a step.

    Attributes:
        num_tokens: the number of the step's tokens, in the order of its rows.
        replay: replays the graph of this kind.
    """

    num_tokens: int
    replay: Callable[[bool], None]


class StepGraphs:
    """The graphs of one model's passes over steps.

    Args:
        accelerator: records and replays the graphs.
        batch: the requests.
        layout: limits of a step.
        kinds: for each kind of graph, whether its rows have adapters.
    """

    def __init__(self, accelerator: Accelerator, batch: InputBatch, layout: KvLayout, kinds: Sequence[bool] = (False,)) -> None:
        self._batch = batch
        sizes = ladder_to(max(layout.max_num_seqs, LEAST_ROWS))
        self._decodes = PassGraphs(accelerator, sizes=sizes, pack=padded_decodes, nothing=table_of(NO_ROWS), kinds=kinds)
        self.num_graphs = self._decodes.num_graphs
        """The number of graphs that `record` records."""
        self.most_decodes = self.most_tokens = sizes[-1]
        """The number of rows of the largest graph."""

    def choose(self, rows: StepRows, num_behind: int = 1) -> StepGraph | None:
        """Return the graph that serves a step; None: no graph does.

        `num_behind`: the number of known tokens that a decode step computes, besides drafts.
        """
        are_decodes = (rows.num_scheduled <= num_behind + self._batch.num_drafts[rows.slots]).all()
        if are_decodes and rows.num_tokens <= self._decodes.largest:
            return StepGraph(rows.num_tokens, partial(self._decodes.run, table_of(spread(rows)), rows.num_tokens))
        return None

    def record(self, run_decodes: RunDecodes, report: Callable[[], None]) -> None:
        """Record the graphs."""
        self._decodes.record(partial(_run_decodes, run_decodes), report)

    def rehearse(self, run_decodes: RunDecodes) -> None:
        """Run what `record` records, to measure its memory."""
        self._decodes.rehearse(partial(_run_decodes, run_decodes))


def _run_decodes(run: RunDecodes, packed: torch.Tensor, size: int, kind: bool) -> None:
    run(packed.view(size, -1), kind)
