"""Step passes: the forward pass of each step of a runner, launched kernel by kernel or replayed as a graph.

Owned by the runner, which is made with one of the two kinds and does not know which. Both queue work and wait for nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.media.given_inputs import GivenInputs
from tetrad.worker_svc.cuda.pass_inputs import PassInputs
from tetrad.worker_svc.cuda.slot_loras import NoGraphLoras, SlotGraphLoras
from tetrad.worker_svc.cuda.step_graphs import Runs, StepGraphs

See = Callable[[torch.Tensor], None]
"""Function that reads the hidden states [T, hidden] of a pass."""


class PassValues(NamedTuple):
    """What a step's forward pass has computed: one of the two, in the order of the step's tokens, valid until the next pass."""

    hidden: torch.Tensor | None = None
    """[T, hidden]."""
    logits: torch.Tensor | None = None
    """[T, V] float32; the caller may change them."""


class StepPasses(Protocol):
    """The forward passes of a runner's steps.

    Attributes:
        num_graphs: the number of graphs that `record` records.
        see: reads the hidden states of each pass. Graphs record what it queues: it must write to fixed places.
    """

    num_graphs: int
    see: See

    def run(self, rows: StepRows, given: GivenInputs, *, needs_hidden: bool) -> PassValues:
        """Run the model over a step's tokens; `needs_hidden`: logits of the tokens do not suffice."""

    def record(self, report: Callable[[], None]) -> None:
        """Record the graphs, and call `report` after each."""

    def rehearse(self) -> None:
        """Run what `record` records, to measure its memory."""


class LaunchedPasses:
    """Passes that are launched kernel by kernel; see StepPasses.

    Args:
        passes: the model's passes.
        loras: the adapters of its requests.
    """

    def __init__(self, passes: ForwardPasses, loras: NoGraphLoras | SlotGraphLoras) -> None:
        self._passes, self._loras = passes, loras
        self.num_graphs = 0
        self.see: See = _see_nothing

    def run(self, rows: StepRows, given: GivenInputs, *, needs_hidden: bool) -> PassValues:  # noqa: ARG002 - of RecordedPasses
        """See StepPasses."""
        self._loras.select_tokens(rows)
        hidden = self._passes.of_rows(rows, given)
        self.see(hidden)
        return PassValues(hidden)

    def record(self, report: Callable[[], None]) -> None:
        """Do nothing: there are no graphs."""

    def rehearse(self) -> None:
        """Do nothing: there are no graphs."""


class RecordedPasses(LaunchedPasses):
    """Passes that are replayed where a graph serves the step; see StepPasses.

    Args:
        model: the model; its steps need no metadata from the host.
        passes: its passes.
        loras: the adapters of its requests.
        accelerator: records and replays the graphs.
        batch: the requests.
        layout: limits of a step.
        has_output: whether the model has an output layer; otherwise, all graphs write hidden states.
    """

    def __init__(
        self,
        model: DeviceModel,
        passes: ForwardPasses,
        loras: NoGraphLoras | SlotGraphLoras,
        accelerator: Accelerator,
        batch: InputBatch,
        layout: KvLayout,
        *,
        has_output: bool = True,
    ) -> None:
        super().__init__(passes, loras)
        self._model = model
        graphs = self._graphs = StepGraphs(accelerator, batch, layout, passes.inputs, loras.kinds)
        self.num_graphs = graphs.num_graphs
        sizes, device = model.config, accelerator.device
        self._has_output, most = has_output, graphs.most_decodes if has_output else 0
        self._logits = torch.empty(most, sizes.vocab_size, dtype=torch.float32, device=device)
        self._hidden = torch.empty(graphs.most_tokens, sizes.hidden_size, dtype=model.dtype, device=device)

    def run(self, rows: StepRows, given: GivenInputs, *, needs_hidden: bool) -> PassValues:
        """See StepPasses; a step with given inputs has no graph."""
        graph = self._graphs.choose(rows, needs_hidden=needs_hidden) if not given else None
        if graph is None:
            return super().run(rows, given, needs_hidden=needs_hidden)
        graph.replay(self._loras.select_for_graph(np.repeat(rows.slots, rows.num_scheduled)))
        if graph.is_mixed or not self._has_output:
            return PassValues(hidden=self._hidden[: rows.num_tokens])
        return PassValues(logits=self._logits[: rows.num_tokens])

    def record(self, report: Callable[[], None]) -> None:
        """See StepPasses."""
        self._loras.forget_graph_rows()
        self._graphs.record(self._runs(), report)

    def rehearse(self) -> None:
        """See StepPasses."""
        self._loras.forget_graph_rows()
        self._graphs.rehearse(self._runs())

    def _runs(self) -> Runs:
        return Runs(self._run_decodes if self._has_output else self._run_mixed, self._run_mixed)

    def _run_decodes(self, inputs: PassInputs, are_adapted: bool) -> None:
        """Queue a pass, and write the logits of all of its tokens; see Run."""
        hidden = self._run_pass(inputs, are_adapted)
        self._logits[: len(hidden)].copy_(self._model.logits(hidden))

    def _run_mixed(self, inputs: PassInputs, are_adapted: bool) -> None:
        """Queue a pass, and write the hidden states of all of its tokens; see Run."""
        hidden = self._run_pass(inputs, are_adapted)
        self._hidden[: len(hidden)].copy_(hidden)

    def _run_pass(self, inputs: PassInputs, are_adapted: bool) -> torch.Tensor:
        self._loras.use_graph_rows(len(inputs.token_ids), are_adapted=are_adapted)
        hidden = self._passes.of_inputs(inputs)
        self.see(hidden)
        return hidden


def _see_nothing(hidden: torch.Tensor) -> None:
    """Do nothing: nobody reads the hidden states."""
