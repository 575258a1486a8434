"""Adapters of the CUDA runner: extends runner/loras.py by graphs, which are recorded without and with adapters.

A step whose rows have no adapters replays a graph without adapters, which launches no LoRA kernels.
"""

from contextlib import AbstractContextManager

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.loras import DeviceLoras
from tetrad.worker_svc.runner.loras import NoLoras, SlotLoras


class NoGraphLoras(NoLoras):
    """The adapters of a model without support for them.

    Attributes:
        kinds: for each kind of graph, whether its rows have adapters.
    """

    kinds = (False,)

    def select_for_graph(self, slots: Ints) -> bool:  # noqa: ARG002 - of SlotGraphLoras
        """Return False: no row has an adapter."""
        return False

    def forget_graph_rows(self) -> None:
        """Do nothing."""

    def use_graph_rows(self, num_rows: int, *, are_adapted: bool) -> None:
        """Do nothing."""

    def rehearsal(self) -> AbstractContextManager[None] | None:
        """Return None: there are no adapters to rehearse."""
        return None


class SlotGraphLoras(SlotLoras):
    """The adapter of each slot of a batch, for steps with and without a graph.

    Args:
        loras: the model's adapters.
        max_num_seqs: number of slots.
    """

    kinds = (False, True)

    def __init__(self, loras: DeviceLoras, max_num_seqs: int) -> None:
        super().__init__(loras, max_num_seqs)
        self._device_loras = loras

    def select_for_graph(self, slots: Ints) -> bool:
        """Set the adapters of the rows of the next replayed graph; return the kind of graph: whether any row has an adapter."""
        return self._device_loras.select_for_graph(self._ids[slots])

    def forget_graph_rows(self) -> None:
        """Remove the adapters of all graph rows before graphs are recorded: the buffer may contain rows of a larger batch."""
        self._device_loras.forget_graph_rows()

    def use_graph_rows(self, num_rows: int, *, are_adapted: bool) -> None:
        """Choose the kind of the graph that is recorded next."""
        self._device_loras.use_graph_rows(num_rows, are_adapted=are_adapted)

    def rehearsal(self) -> AbstractContextManager[None] | None:
        """Return a context in which every row is treated as a row with an adapter."""
        return self._device_loras.rehearsal()
