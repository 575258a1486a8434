"""Step passes: the forward pass of each step of a runner, launched kernel by kernel or replayed as a graph.

Owned by the runner, which is made with one of the two kinds and does not know which. Both queue work and wait for nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GivenRows
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.slot_loras import NoGraphLoras, SlotGraphLoras
from tetrad.worker_svc.cuda.step_graphs import StepGraph, StepGraphs

See = Callable[[torch.Tensor], None]
"""Function that reads the hidden states [T, hidden] of a pass."""


class PassValues(NamedTuple):
    """What a step's forward pass has computed: one of the two, in the order of the step's tokens."""

    hidden: torch.Tensor | None = None
    """[T, hidden]."""
    logits: torch.Tensor | None = None
    """[T, V] float32, valid until the next pass; the caller may change them."""


class LaunchedPasses:
    """Passes that are launched kernel by kernel.

    Args:
        passes: the model's passes.
        loras: the adapters of its requests.

    Attributes:
        num_graphs: the number of graphs that `record` records.
        see: reads the hidden states of each pass. Graphs record what it queues: it must write to fixed places.
    """

    def __init__(self, passes: ForwardPasses, loras: NoGraphLoras | SlotGraphLoras) -> None:
        self._passes, self._loras = passes, loras
        self.num_graphs = 0
        self.see: See = _see_nothing

    def run(self, rows: StepRows, given: GivenRows | None, *, needs_hidden: bool) -> PassValues:  # noqa: ARG002 - of RecordedPasses
        """Run the model over a step's tokens; `needs_hidden`: logits of the tokens do not suffice."""
        self._loras.select_tokens(rows)
        hidden = self._passes.of_rows(rows, given)
        self.see(hidden)
        return PassValues(hidden)

    def record(self, report: Callable[[], None]) -> None:
        """Record the graphs."""

    def rehearse(self) -> None:
        """Run what `record` records, to measure its memory."""


class RecordedPasses(LaunchedPasses):
    """Passes that are replayed where a graph serves the step; see LaunchedPasses.

    Args:
        model: the model; its steps need no metadata from the host.
        passes: its passes.
        loras: the adapters of its requests.
        accelerator: records and replays the graphs.
        batch: the requests.
        layout: limits of a step.
    """

    def __init__(
        self,
        model: DeviceModel,
        passes: ForwardPasses,
        loras: NoGraphLoras | SlotGraphLoras,
        accelerator: Accelerator,
        batch: InputBatch,
        layout: KvLayout,
    ) -> None:
        super().__init__(passes, loras)
        self._model = model
        self._graphs = StepGraphs(accelerator, batch, layout, loras.kinds)
        self.num_graphs = self._graphs.num_graphs
        shape = self._graphs.most_decodes, model.config.vocab_size
        self._logits = torch.empty(shape, dtype=torch.float32, device=accelerator.device)

    def run(self, rows: StepRows, given: GivenRows | None, *, needs_hidden: bool) -> PassValues:
        """See LaunchedPasses; a step with given embeddings has no graph."""
        graph = None if needs_hidden or given is not None else self._graphs.choose(rows)
        if graph is None:
            return super().run(rows, given, needs_hidden=needs_hidden)
        return self._replay(graph, rows)

    def record(self, report: Callable[[], None]) -> None:
        """See LaunchedPasses."""
        self._loras.forget_graph_rows()
        self._graphs.record(self._run_decodes, report)

    def rehearse(self) -> None:
        """See LaunchedPasses."""
        self._loras.forget_graph_rows()
        self._graphs.rehearse(self._run_decodes)

    def _replay(self, graph: StepGraph, rows: StepRows) -> PassValues:
        graph.replay(self._loras.select_for_graph(np.repeat(rows.slots, rows.num_scheduled)))
        return PassValues(logits=self._logits[: graph.num_tokens])

    def _run_decodes(self, table: torch.Tensor, are_adapted: bool) -> None:
        """Queue the pass of rows [B, 5] of one token each; some rows may be padding."""
        self._loras.use_graph_rows(len(table), are_adapted=are_adapted)
        hidden = self._passes.of_decodes(table)
        self.see(hidden)
        self._logits[: len(table)].copy_(self._model.logits(hidden))


def _see_nothing(hidden: torch.Tensor) -> None:
    """Do nothing: nobody reads the hidden states."""
