"""Swap pool: the blocks of a KV cache's second tier in host memory, and the copies between the tiers.

Owned by the KV cache. A host block is contiguous over all layers, so one copy moves it to or from a device. Blocks are gathered
in a buffer in device memory, a few at a time. With a device, the host memory is pinned: copies are queued in the order of the
steps, without waiting. The engine core knows the content of each block.
"""

from collections.abc import Iterator, Sequence

import torch

from tetrad.worker_svc.core.layout_check import check_host_blocks
from tetrad.worker_svc.core.plan import Ints

_SLAB_BYTES = 1 << 26
"""Size of a piece of pinned memory in bytes. torch rounds sizes up to a power of two: one piece could take twice its size."""
_AT_ONCE = 32
_BYTES_AT_ONCE = 1 << 25
"""Limits of the blocks that are gathered on the device at once: _AT_ONCE blocks, and _BYTES_AT_ONCE bytes."""


class SwapPool:
    """The host blocks of a cache.

    Args:
        layers: the layers of the cache, each [num_blocks, bytes] uint8 of the same shape, with contiguous rows.
        num_host_blocks: number of host blocks; FailedPrecondition if host memory is too small.
    """

    def __init__(self, layers: Sequence[torch.Tensor], num_host_blocks: int) -> None:
        self._layers, self._device = layers, layers[0].device
        layer_bytes = layers[0].shape[1]
        block_bytes = len(layers) * layer_bytes
        check_host_blocks(num_host_blocks, block_bytes)
        self._at_once = blocks_at_once(block_bytes)
        slab_bytes = max(min(_SLAB_BYTES, num_host_blocks * block_bytes), block_bytes)
        self._per_slab = slab_bytes // block_bytes
        pin = self._device.type == "cuda"
        self._slabs = [
            torch.empty(slab_bytes, dtype=torch.uint8, pin_memory=pin)[: self._per_slab * block_bytes].view(
                self._per_slab, len(layers), layer_bytes
            )
            for _ in range(-(-num_host_blocks // self._per_slab))
        ]

    def swap_out(self, blocks: Ints, host_blocks: Ints) -> None:
        """Copy blocks of the cache to host blocks."""
        for ids, rows in self._pieces(blocks, host_blocks):
            gathered = self._buffer(rows)
            for number, layer in enumerate(self._layers):
                gathered[:, number] = layer.index_select(0, ids)
            for block, row in zip(gathered, rows, strict=True):
                row.copy_(block, non_blocking=True)

    def swap_in(self, host_blocks: Ints, blocks: Ints) -> None:
        """Copy host blocks to blocks of the cache."""
        for ids, rows in self._pieces(blocks, host_blocks):
            gathered = self._buffer(rows)
            for block, row in zip(gathered, rows, strict=True):
                block.copy_(row, non_blocking=True)
            for number, layer in enumerate(self._layers):
                layer.index_copy_(0, ids, gathered[:, number])

    def _pieces(self, blocks: Ints, host_blocks: Ints) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Yield pieces of the copies: ids of blocks, on the device, and the same number of host blocks."""
        for start in range(0, len(blocks), self._at_once):
            piece = slice(start, start + self._at_once)
            yield ids_on(self._device, blocks[piece]), [self._row(each) for each in host_blocks[piece].tolist()]

    def _row(self, host_block: int) -> torch.Tensor:
        """Return a host block, [layers, bytes]."""
        return self._slabs[host_block // self._per_slab][host_block % self._per_slab]

    def _buffer(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """Return a buffer [n, layers, bytes] for n blocks on the device."""
        return torch.empty((len(rows), *rows[0].shape), dtype=torch.uint8, device=self._device)


def blocks_at_once(block_bytes: int) -> int:
    """Return the number of blocks of this size, over all layers, that are copied at the same time."""
    return max(min(_AT_ONCE, _BYTES_AT_ONCE // block_bytes), 1)


def ids_on(device: torch.device, ids: Ints) -> torch.Tensor:
    """Return ids [n] int64 on a device. Without pinned memory, the driver might wait for earlier steps before the copy."""
    values = torch.from_numpy(ids)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
