"""Decode graphs: the forward pass of steps in which every request has one token, recorded for a series of batch sizes.

A decode step consists of hundreds of small launches, which take the host longer than the device; a graph is one launch. It
reads its rows from one fixed buffer and writes logits to another. A step uses the graph of the next larger size: the additional
rows are padding, which writes no keys and attends to none.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator, Graph
from tetrad.worker_svc.kernels.gather_inputs import FIRST_TOKEN

LADDER = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Batch sizes of graphs, the same as vLLM's. Larger steps run without a graph."""

LEAST_ROWS = 8
"""Smallest size of the largest graph: even a single request has several rows if it has drafts."""

_PADDING = (-1, 0, 1, 0, 0)
"""A row of padding, except for the index of its token; see gather_inputs."""

ForwardRows = Callable[[torch.Tensor, bool], torch.Tensor]
"""Function (rows [B, 5] int32 of one token each, whether any row has an adapter) -> logits [B, V] float32."""


class DecodeGraphs:
    """The graphs of one model with one KV cache.

    Args:
        accelerator: records and replays the graphs.
        vocab_size: V.
        most: largest possible batch.
        kinds: for each kind of graph to record, whether its rows have adapters.
    """

    def __init__(self, accelerator: Accelerator, *, vocab_size: int, most: int, kinds: Sequence[bool] = (False,)) -> None:
        self._accelerator, self._kinds = accelerator, kinds
        self.sizes = ladder_to(most)
        largest = self.sizes[-1]
        self._rows = torch.zeros((largest, len(_PADDING)), dtype=torch.int32, device=accelerator.device)
        self._logits = torch.empty((largest, vocab_size), dtype=torch.float32, device=accelerator.device)
        self._graphs: dict[tuple[int, bool], Graph] = {}

    @property
    def num_graphs(self) -> int:
        """The number of graphs that `record` records."""
        return len(self.sizes) * len(self._kinds)

    def record(self, forward: ForwardRows, report: Callable[[int, int], None]) -> None:
        """Record `forward` for every size, the largest first, so that the others fit into its memory."""
        pairs = [(size, kind) for size in reversed(self.sizes) for kind in self._kinds]
        for done, (size, kind) in enumerate(pairs, 1):
            self._accelerator.upload_into(self._rows, _padded(_NO_ROWS, size))
            self._graphs[size, kind] = self._accelerator.capture(partial(self._run, forward, size, kind))
            report(done, len(pairs))

    def fits(self, rows: StepRows) -> bool:
        """Return whether a graph can run the step."""
        return rows.num_decodes == len(rows.slots) and len(rows.slots) <= (self.sizes[-1] if self._graphs else 0)

    def run(self, table: npt.NDArray[np.int32], *, are_adapted: bool = False) -> torch.Tensor:
        """Return the logits [R, V] float32 of rows [R, 5]; valid until the next call, and the caller may change them."""
        num_rows = len(table)
        size = next(size for size in self.sizes if size >= num_rows)
        self._accelerator.upload_into(self._rows, _padded(table, size))
        self._graphs[size, are_adapted].replay()
        return self._logits[:num_rows]

    def _run(self, forward: ForwardRows, size: int, kind: bool) -> None:
        self._logits[:size].copy_(forward(self._rows[:size], kind))


def ladder_to(most: int) -> tuple[int, ...]:
    """Return the sizes of graphs for batches of up to `most` rows."""
    below = [size for size in LADDER if size < most]
    return (*below, min(most, LADDER[-1])) if len(below) < len(LADDER) else LADDER


def _padded(table: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int32]:
    """Pad rows to `size`; the tokens of padding rows follow those of the other rows."""
    padded = np.empty((size, len(_PADDING)), np.int32)
    padded[: len(table)], padded[len(table) :] = table, _PADDING
    padded[len(table) :, FIRST_TOKEN] = np.arange(len(table), size)
    return padded


_NO_ROWS = np.empty((0, len(_PADDING)), np.int32)
