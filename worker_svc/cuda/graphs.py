"""Decode graphs: the forward pass of steps in which every request has one token, recorded for a ladder of batch sizes.

A step of decodes is hundreds of small launches, which take the host longer than the device; a graph is one. It reads its rows
from one fixed place and leaves logits in another, and is as large as the next rung: rows beyond the step's are padding, which
writes no keys and attends to none.
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
"""Batch sizes; as vLLM has them. Larger steps run without a graph."""

LEAST_ROWS = 8
"""Rows of the largest graph at least: a request alone, with drafts, has several."""

_PADDING = (-1, 0, 1, 0, 0)
"""A row of no request, but for where its token is; see gather_inputs."""

ForwardRows = Callable[[torch.Tensor, bool], torch.Tensor]
"""Rows [B, 5] int32 of one token each, and whether any of them has an adapter -> logits [B, V] float32."""


class DecodeGraphs:
    """Graphs of one model over one KV cache.

    Args:
        accelerator: that records and replays.
        vocab_size: V.
        most: largest batch that there can be.
        kinds: whether rows have adapters, of each kind of graph that is recorded.
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
        """How many `record` makes."""
        return len(self.sizes) * len(self._kinds)

    def record(self, forward: ForwardRows, report: Callable[[int, int], None]) -> None:
        """Record `forward` for every size, the largest first: the others then fit into its memory."""
        pairs = [(size, kind) for size in reversed(self.sizes) for kind in self._kinds]
        for done, (size, kind) in enumerate(pairs, 1):
            self._accelerator.upload_into(self._rows, _padded(_NO_ROWS, size))
            self._graphs[size, kind] = self._accelerator.capture(partial(self._run, forward, size, kind))
            report(done, len(pairs))

    def fits(self, rows: StepRows) -> bool:
        """Return whether there is a graph for a step."""
        return rows.num_decodes == len(rows.slots) and len(rows.slots) <= (self.sizes[-1] if self._graphs else 0)

    def run(self, table: npt.NDArray[np.int32], *, are_adapted: bool = False) -> torch.Tensor:
        """Return the logits [R, V] float32 of rows [R, 5] that fit; they are good until the next call, and may be written."""
        num_rows = len(table)
        size = next(size for size in self.sizes if size >= num_rows)
        self._accelerator.upload_into(self._rows, _padded(table, size))
        self._graphs[size, are_adapted].replay()
        return self._logits[:num_rows]

    def _run(self, forward: ForwardRows, size: int, kind: bool) -> None:
        self._logits[:size].copy_(forward(self._rows[:size], kind))


def ladder_to(most: int) -> tuple[int, ...]:
    """Return the sizes for batches of up to `most`."""
    below = [size for size in LADDER if size < most]
    return (*below, min(most, LADDER[-1])) if len(below) < len(LADDER) else LADDER


def _padded(table: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int32]:
    """Return `size` rows; those of padding have their one token behind those of the others."""
    padded = np.empty((size, len(_PADDING)), np.int32)
    padded[: len(table)], padded[len(table) :] = table, _PADDING
    padded[len(table) :, FIRST_TOKEN] = np.arange(len(table), size)
    return padded


_NO_ROWS = np.empty((0, len(_PADDING)), np.int32)
