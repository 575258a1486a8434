"""KV cache: the memory behind the block ids that the engine core hands out.

Owned by the model runner. One tensor a layer, keys and values side by side, so that a page is one contiguous piece and one
gather fetches both: [num_blocks, block_size, 2, num_kv_heads, head_dim]. Knows nothing of requests. Block 0 is the null
block: its content is never used, but it must be finite, because padded pages point at it.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, StepPlan
from tetrad.worker_svc.kv_cache.swap_pool import SwapPool, ids_on


@dataclass(frozen=True, slots=True)
class KvCacheSpec:
    """Shape of the cache of a model, all layers alike.

    Attributes:
        is_by_block: a block's pages of all layers lie together, instead of all pages of a layer. Memory that the system gives
            when it is written, 2 MB at a time, then grows with the blocks that are in use, not with them and the layers.
        scales_bytes: of the scales of a head of one token, beside its elements; of 1-byte types.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    is_by_block: bool = False
    scales_bytes: int = 0

    def page(self, block_size: int) -> tuple[int, ...]:
        """Return the shape of a layer's part of a block, in elements."""
        return (block_size, 2, self.num_kv_heads, self.head_dim + self.scales_bytes)

    def block_size_bytes(self, block_size: int) -> int:
        """Return the bytes of one block over all layers, keys and values together."""
        return self.num_layers * math.prod(self.page(block_size)) * self.dtype.itemsize


class KvCache:
    """KV blocks of every layer.

    Args:
        spec: shape of a layer's.
        num_blocks, block_size: how many, and tokens of each.
        num_host_blocks: of the second tier, in host memory.
        device: whose memory they are.
    """

    def __init__(
        self,
        spec: KvCacheSpec,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    ) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._device = device
        allocate = _lazy_zeros if device.type == "cpu" else partial(_zeros, device=device)
        page = spec.page(block_size)
        if spec.is_by_block:
            self.layers = list(allocate((num_blocks, spec.num_layers, *page), spec.dtype).unbind(1))
        else:
            self.layers = [allocate((num_blocks, *page), spec.dtype) for _ in range(spec.num_layers)]
        # As bytes: few operations know every type that a cache may have.
        self._bytes = [layer.view(num_blocks, -1).view(torch.uint8) for layer in self.layers]  # [num_blocks, bytes]
        self._swap_pool = SwapPool(self._bytes, num_host_blocks)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.spec.block_size_bytes(self.block_size)

    def move(self, plan: StepPlan) -> None:
        """Do what a plan wants done with blocks before its step, in the contract's order: what leaves is read first."""
        if plan.swap_out is not None:
            self._swap_pool.swap_out(*plan.swap_out)
        if plan.swap_in is not None:
            self._swap_pool.swap_in(*plan.swap_in)
        if plan.block_copies is not None:
            self.copy_blocks(*plan.block_copies)
        if plan.blocks_to_zero is not None:
            self.zero_blocks(plan.blocks_to_zero)

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        """Copy blocks in every layer; all sources are read before any target is written."""
        source_ids, target_ids = ids_on(self._device, sources), ids_on(self._device, targets)
        for layer in self._bytes:
            layer.index_copy_(0, target_ids, layer.index_select(0, source_ids))

    def zero_blocks(self, block_ids: Ints) -> None:
        """Fill blocks with zeros in every layer."""
        ids = ids_on(self._device, block_ids)
        for layer in self._bytes:
            layer.index_fill_(0, ids, 0)  # to assign a number through an index, torch copies it to a device and waits


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, *, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory and no time before they are written: numpy leaves them to the system, torch does not."""
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(shape)
