"""Graphs: a function of the rows of a pass, recorded for a series of sizes.

A pass consists of hundreds of small launches, which take the host longer than the device; a graph is one launch. It reads its
rows from one fixed buffer, and writes its results to places that the recorded function owns. A pass uses the graph of the next
larger size: the additional rows are padding, which writes no keys and attends to none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import torch

from tetrad.worker_svc.cuda.device.accelerator import Accelerator, Graph
from tetrad.worker_svc.cuda.row_tables import Table

LADDER = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Batch sizes of graphs, the same as vLLM's. Larger steps run without a graph of decodes."""

TOKENS = tuple(range(64, 1025, 64))
"""Numbers of tokens of the graphs of mixed steps. A larger step takes the device longer than its launches take the host."""

LEAST_ROWS = 8
"""Smallest size of the largest graph of decodes: even a single request has several rows if it has drafts."""

R = TypeVar("R")

Work = Callable[[torch.Tensor, int, bool], None]
"""Function (packed rows, size, kind) that queues a pass; it writes its results to fixed places."""

Pack = Callable[[R, int], Table]
"""Function (rows, size) -> the rows and padding of a graph of this size, as one array of any shape."""


class PassGraphs(Generic[R]):
    """The graphs of one function, by size and kind.

    Args:
        accelerator: records and replays the graphs.
        sizes: the sizes to record, ascending.
        pack: see Pack.
        nothing: no rows; a graph is recorded with padding alone.
        kinds: the kinds of passes: with and without adapters, or drawn and greedy.
    """

    def __init__(
        self, accelerator: Accelerator, *, sizes: Sequence[int], pack: Pack[R], nothing: R, kinds: Sequence[bool] = (False,)
    ) -> None:
        self._accelerator, self._pack, self._nothing = accelerator, pack, nothing
        self.sizes, self.kinds = sizes, kinds
        self._rows = torch.zeros(max(pack(nothing, size).size for size in sizes), dtype=torch.int32, device=accelerator.device)
        self._graphs: dict[tuple[int, bool], Graph] = {}

    @property
    def num_graphs(self) -> int:
        """The number of graphs that `record` records."""
        return len(self.sizes) * len(self.kinds)

    @property
    def largest(self) -> int:
        """The size of the largest recorded graph; 0 before `record`."""
        return self.sizes[-1] if self._graphs else 0

    def record(self, work: Work, report: Callable[[], None]) -> None:
        """Record `work` for every size, the largest first, so that the others fit into its memory."""
        for size in reversed(self.sizes):
            for kind in self.kinds:
                rows = self._write(self._nothing, size)
                self._graphs[size, kind] = self._accelerator.capture(partial(work, rows, size, kind))
                report()

    def rehearse(self, work: Work) -> None:
        """Run `work` for the largest size of each kind, to measure the memory that the graphs need."""
        for kind in self.kinds:
            work(self._write(self._nothing, self.sizes[-1]), self.sizes[-1], kind)

    def run(self, rows: R, num_rows: int, kind: bool = False) -> None:
        """Replay the smallest graph that has room for `num_rows`, at most `largest`; its results last until the next run."""
        size = next(size for size in self.sizes if size >= num_rows)
        self._write(rows, size)
        self._graphs[size, kind].replay()

    def _write(self, rows: R, size: int) -> torch.Tensor:
        """Write rows and padding to the buffer, and return them as a graph of this size reads them: flat."""
        packed = self._pack(rows, size).reshape(-1)
        self._accelerator.upload_into(self._rows, packed)
        return self._rows[: len(packed)]


def ladder_to(most: int, ladder: Sequence[int] = LADDER) -> tuple[int, ...]:
    """Return the sizes of graphs for up to `most` rows or tokens; those of the ladder are the largest possible."""
    return (*(size for size in ladder if size < most), *([most] if most <= ladder[-1] else []))
