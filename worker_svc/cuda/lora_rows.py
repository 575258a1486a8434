"""Rows by adapter: groups the rows of a step for the LoRA kernels, on the host and in device memory.

Called by DeviceLoras for each step. Sizes depend only on the number of rows, not on their adapters, so that a recorded graph
reads its groups from a fixed buffer.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.kernels.lora import FEW_ROWS, RowGroups, rows_of_tiles

_COLUMNS = 3  # columns of a tile's entry


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The adapters of a step's rows [T].

    Attributes:
        slots: [T] int32 on the device, the slot of each row's adapter; below 0: no adapter.
        groups: the same rows, grouped for the kernels.
    """

    slots: torch.Tensor
    groups: RowGroups


class GraphRows:
    """The adapters of the rows of decode graphs, in fixed memory.

    Args:
        accelerator: the device with the memory.
        most: number of rows in the largest graph.
        num_adapters: S.
    """

    def __init__(self, accelerator: Accelerator, most: int, num_adapters: int) -> None:
        self._accelerator, self._most, self._num_adapters = accelerator, most, num_adapters
        size = 2 * most + _COLUMNS * _num_tiles(most, num_adapters, FEW_ROWS)
        self._values = torch.zeros(size, dtype=torch.int32, device=accelerator.device)

    def write(self, slots: Ints) -> None:
        """Set the adapters of the rows of the next replay; rows of padding have none."""
        padded = np.full(self._most, -1, np.int64)
        padded[: len(slots)] = slots
        order, tiles, _ = group_rows(padded, self._num_adapters, FEW_ROWS)
        self._accelerator.upload_into(self._values, np.concatenate([padded.astype(np.int32), order, tiles.ravel()]))

    def of(self, num_rows: int) -> AdaptedRows:
        """Return the adapters of the rows of a graph with `num_rows`."""
        num_tiles = _num_tiles(num_rows, self._num_adapters, FEW_ROWS)
        order, tiles = self._values[self._most : 2 * self._most], self._values[2 * self._most :]
        groups = RowGroups(order, tiles[: num_tiles * _COLUMNS].view(num_tiles, _COLUMNS), FEW_ROWS)
        return AdaptedRows(self._values[:num_rows], groups)


def upload_rows(accelerator: Accelerator, slots: Ints, num_adapters: int) -> AdaptedRows:
    """Copy the adapters' slots [T] of a step's rows to the device, for a step without a graph."""
    order, tiles, rows_of_tile = group_rows(slots, num_adapters)
    values = accelerator.upload(np.concatenate([slots.astype(np.int32), order, tiles.ravel()]))
    num_rows = len(slots)
    groups = RowGroups(values[num_rows : 2 * num_rows], values[2 * num_rows :].view(tiles.shape), rows_of_tile)
    return AdaptedRows(values[:num_rows], groups)


def group_rows(
    slots: Ints, num_adapters: int, rows_of_tile: int = 0
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Return `order` and `tiles` as in RowGroups, and the number of rows in a tile.

    Args:
        slots: [T], the slot of each row's adapter; below 0: no adapter.
        num_adapters: S.
        rows_of_tile: number of rows in a tile; 0: chosen for T.
    """
    rows_of_tile = rows_of_tile or rows_of_tiles(len(slots))
    order = np.argsort(slots, kind="stable").astype(np.int32)
    bounds = np.searchsorted(slots[order], np.arange(num_adapters + 1))
    tiles = np.full((_num_tiles(len(slots), num_adapters, rows_of_tile), _COLUMNS), -1, np.int32)
    found = [
        (slot, begin, min(rows_of_tile, end - begin))
        for slot, (first, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        for begin in range(first, end, rows_of_tile)
    ]
    tiles[: len(found)] = np.array(found, np.int32).reshape(-1, _COLUMNS)
    return order, tiles, rows_of_tile


def _num_tiles(num_rows: int, num_adapters: int, rows_of_tile: int) -> int:
    """Return the largest possible number of tiles: one per row, or full tiles and one partial tile per adapter."""
    return min(num_rows, -(-num_rows // rows_of_tile) + num_adapters)
