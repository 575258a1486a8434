"""Swap pool: blocks in host memory, the second tier of a KV cache, and the copies between the two.

Owned by the KV cache. A host block is one contiguous piece over all layers, so it is one copy to or from a device however many
layers there are; on the way blocks are gathered in device memory, some at a time. Pinned where there is a device: copies are
queued in the order of the steps and waited for by nobody. Which block has what is the engine core's.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.layout_check import check_host_blocks
from tetrad.worker_svc.plan import Ints

_SLAB_BYTES = 1 << 26
"""torch rounds pinned memory up to a power of two: a pool in one piece could take twice its size."""
_AT_ONCE = 32
"""Blocks that are gathered on the device at the same time."""


class SwapPool:
    """Host blocks beside the layers of a cache.

    Args:
        layers: of the cache, [num_blocks, ...] each, contiguous and alike.
        num_host_blocks: FailedPrecondition if the host has no room for so many.
    """

    def __init__(self, layers: Sequence[torch.Tensor], num_host_blocks: int) -> None:
        self._layers = [layer.view(len(layer), -1).view(torch.uint8) for layer in layers]  # [num_blocks, bytes]
        self._device = layers[0].device
        layer_bytes = self._layers[0].shape[1]
        block_bytes = len(layers) * layer_bytes
        check_host_blocks(num_host_blocks, block_bytes)
        slab_bytes = max(_SLAB_BYTES, block_bytes)
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
        for start in range(0, len(blocks), _AT_ONCE):
            ids = self._index(blocks[start : start + _AT_ONCE])
            gathered = torch.stack([layer[ids] for layer in self._layers], 1)  # [n, layers, bytes]
            for block, host_block in zip(gathered, host_blocks[start : start + _AT_ONCE].tolist(), strict=True):
                self._row(host_block).copy_(block, non_blocking=True)

    def swap_in(self, host_blocks: Ints, blocks: Ints) -> None:
        """Copy host blocks to blocks of the cache."""
        for start in range(0, len(blocks), _AT_ONCE):
            ids = self._index(blocks[start : start + _AT_ONCE])
            rows = [self._row(host_block) for host_block in host_blocks[start : start + _AT_ONCE].tolist()]
            gathered = torch.empty((len(rows), *rows[0].shape), dtype=torch.uint8, device=self._device)
            for block, row in zip(gathered, rows, strict=True):
                block.copy_(row, non_blocking=True)
            for number, layer in enumerate(self._layers):
                layer.index_copy_(0, ids, gathered[:, number])

    def _row(self, host_block: int) -> torch.Tensor:
        """Return a host block, [layers, bytes]."""
        return self._slabs[host_block // self._per_slab][host_block % self._per_slab]

    def _index(self, blocks: Ints) -> torch.Tensor:
        # From memory that is not pinned the copy is done when the call returns; a device's queue is not waited for.
        return torch.from_numpy(blocks).to(self._device, non_blocking=True)
