"""Adapters of the CUDA runner: runner/loras.py with graphs, which are recorded without adapters and with them.

A step whose rows have no adapter replays the first kind, which launches nothing for them.
"""

from contextlib import AbstractContextManager

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.loras import DeviceLoras
from tetrad.worker_svc.runner.loras import NoLoras, SlotLoras


class NoGraphLoras(NoLoras):
    """A model without adapters.

    Attributes:
        kinds: of graphs: whether their rows have adapters.
    """

    kinds = (False,)

    def select_decodes(self, slots: Ints) -> bool:  # noqa: ARG002 - of SlotGraphLoras
        """Return False: no row has an adapter."""
        return False

    def forget_graph_rows(self) -> None:
        """Do nothing."""

    def use_graph_rows(self, num_rows: int, *, are_adapted: bool) -> None:
        """Do nothing."""

    def rehearsal(self) -> AbstractContextManager[None] | None:
        """Return None: there is nothing to rehearse."""
        return None


class SlotGraphLoras(SlotLoras):
    """The adapter of each slot of a batch, for steps with and without a graph.

    Args:
        loras: of the model.
        max_num_seqs: slots.
    """

    kinds = (False, True)

    def __init__(self, loras: DeviceLoras, max_num_seqs: int) -> None:
        super().__init__(loras, max_num_seqs)
        self._device_loras = loras

    def select_decodes(self, slots: Ints) -> bool:
        """Set the adapters of the rows of the graph that is replayed next; return which kind of graph that is."""
        return self._device_loras.select_for_graph(self._ids[slots])

    def forget_graph_rows(self) -> None:
        """Let no row of a graph have an adapter, before graphs are recorded: what is left there may be of a larger batch."""
        self._device_loras.forget_graph_rows()

    def use_graph_rows(self, num_rows: int, *, are_adapted: bool) -> None:
        """Let what is recorded next be of one kind."""
        self._device_loras.use_graph_rows(num_rows, are_adapted=are_adapted)

    def rehearsal(self) -> AbstractContextManager[None] | None:
        """Return a context in which every row counts as one with an adapter."""
        return self._device_loras.rehearsal()
