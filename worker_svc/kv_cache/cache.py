"""KV cache: the memory of the blocks whose ids the engine core allocates.

Owned by the model runner. Each layer has one tensor with keys and values side by side, so that a page is contiguous and one
gather reads both: [num_blocks, block_size, 2, num_kv_heads, head_dim]. Layers of different groups (layer_groups.py) share
tensors: a block has pages of one group at a time. A layer with a state has one row of float32 numbers per block, at the
beginning of its page: the state after the block's last computed token. Knows nothing of requests. Block 0 is the null block:
its content is never used, but it must be finite, because padded pages refer to it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvGroup
from tetrad.worker_svc.core.plan import Ints, SchedulerOutput
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup
from tetrad.worker_svc.kv_cache.swap_pool import SwapPool

_STATE_BYTES = 4
_TOKENS_OF_STATE = 256
"""Tokens per block of a model that has only states: about as many as common beginnings of prompts have."""


@dataclass(frozen=True, slots=True)
class KvCacheSpec:
    """Shape of a model's cache; the pages of all layers have the same size.

    Attributes:
        groups: the groups of the model's layers.
        is_by_block: memory is ordered by blocks, with the pages of all layers together, instead of by layers. The system
            allocates memory when it is written, 2 MB at a time; with this order it grows only with the blocks in use.
        scales_bytes: bytes of the scales of one head and token, after its elements; for 1-byte types.
        state_size: number of values in a layer's state; 0: no layer has a state.
    """

    groups: tuple[LayerGroup, ...]
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    is_by_block: bool = False
    scales_bytes: int = 0
    state_size: int = 0

    @property
    def has_attention(self) -> bool:
        """Whether any layer of the model has keys and values."""
        return not all(group.is_state for group in self.groups)

    @property
    def pages_per_block(self) -> int:
        """The number of layers in the largest group; 1 if no layer has a cache."""
        return max([1, *(len(group.layers) for group in self.groups)])

    @property
    def places(self) -> list[int]:
        """The index of each layer's page within a block."""
        place_of = {layer: place for group in self.groups for place, layer in enumerate(group.layers)}
        return [place_of[layer] for layer in sorted(place_of)]

    def page(self, block_size: int) -> tuple[int, ...]:
        """Return the shape of a layer's part of a block, in elements."""
        if not self.has_attention:
            return (self.state_size,)
        return (block_size, 2, self.num_kv_heads, self.head_dim + self.scales_bytes)

    def block_size_for(self, asked: int) -> int:
        """Return the tokens per block, a multiple of `asked`, such that keys and values of a page take as much as a state.

        Without keys and values, it is the interval of kept states, in tokens.
        """
        if not self.state_size:
            return asked
        if not self.has_attention:
            return -(-_TOKENS_OF_STATE // asked) * asked
        of_tokens = math.prod(self.page(asked)) * self.dtype.itemsize
        return -(-self.state_size * _STATE_BYTES // of_tokens) * asked

    def block_size_bytes(self, block_size: int) -> int:
        """Return the size in bytes of one block: keys and values of all layers of a group."""
        return self.pages_per_block * math.prod(self.page(block_size)) * self.dtype.itemsize

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups in the form for the engine core."""
        block_size = self.block_size_for(block_size)
        size_bytes, dtype = self.block_size_bytes(block_size), str(self.dtype).removeprefix("torch.")
        return tuple(
            KvGroup(
                group.layers,
                size_bytes,
                self.num_kv_heads,
                self.head_dim,
                dtype,
                group.sliding_window,
                group.is_state,
                block_size if self.state_size else 0,
            )
            for group in self.groups
        )


class KvCache:
    """The KV blocks of all groups.

    Args:
        spec: the shape of the cache.
        num_blocks, block_size: number of blocks, and tokens per block.
        num_host_blocks: number of blocks of the second tier, in host memory.
        device: the device whose memory holds the blocks.

    Raises:
        FailedPrecondition: a page is too small for a state.
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
        if spec.state_size and (least := spec.block_size_for(block_size)) > block_size and spec.has_attention:
            raise FailedPrecondition(f"block_size {block_size} has no room for a state of this model; it needs {least} tokens.")
        allocate = _lazy_zeros if device.type == "cpu" else partial(_zeros, device=device)
        page = spec.page(block_size)
        if spec.is_by_block:
            pages = list(allocate((num_blocks, spec.pages_per_block, *page), spec.dtype).unbind(1))
        else:
            pages = [allocate((num_blocks, *page), spec.dtype) for _ in range(spec.pages_per_block)]
        # As bytes, because few operations support every type of cache.
        self._bytes = [each.view(num_blocks, -1).view(torch.uint8) for each in pages]  # [num_blocks, bytes]
        states = {layer for group in spec.groups if group.is_state for layer in group.layers}
        self.layers = [
            self._bytes[place][:, : spec.state_size * _STATE_BYTES].view(torch.float32) if layer in states else pages[place]
            for layer, place in enumerate(spec.places)
        ]
        self._swap_pool = SwapPool(self._bytes, num_host_blocks)

    @property
    def num_groups(self) -> int:
        """The number of KV groups, and of block tables per request."""
        return len(self.spec.groups)

    @property
    def size_bytes(self) -> int:
        """The size of all blocks in bytes."""
        return self.num_blocks * self.spec.block_size_bytes(self.block_size)

    @property
    def layers_to_move(self) -> Sequence[torch.Tensor]:
        """The layers as bytes, [num_blocks, bytes] each, for transfers of blocks; empty: layers with states are not moved."""
        return () if self.spec.state_size else self._bytes

    def move(self, plan: SchedulerOutput) -> None:
        """Copy blocks between tiers as a plan says, before its step; blocks are swapped out first, as the contract requires."""
        self.move_blocks(plan.swap_out, plan.swap_in)

    def move_blocks(self, swap_out: Iterable[Ints] | None, swap_in: Iterable[Ints] | None) -> None:
        """Copy blocks to the second tier, then copy other blocks back; see SchedulerOutput."""
        if swap_out is not None:
            self._swap_pool.swap_out(*swap_out)
        if swap_in is not None:
            self._swap_pool.swap_in(*swap_in)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, *, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that use no memory before they are written: numpy lets the system zero pages lazily, torch does not."""
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(shape)
