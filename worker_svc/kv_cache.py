"""KV cache: the memory behind the block ids that the engine core hands out.

Owned by the model runner. One tensor a layer, keys and values side by side, so that a page is one contiguous piece and one
gather fetches both: [num_blocks, block_size, 2, num_kv_heads, head_dim]. Knows nothing of requests. Block 0 is the null
block: its content is never used, but it must be finite, because padded pages point at it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from tetrad.worker_svc.plan import Ints


@dataclass(frozen=True, slots=True)
class KvCacheSpec:
    """Shape of the cache of a model, all layers alike."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def block_size_bytes(self, block_size: int) -> int:
        """Return the bytes of one block over all layers, keys and values together."""
        return self.num_layers * block_size * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KvCache:
    """KV blocks of every layer."""

    def __init__(self, spec: KvCacheSpec, *, num_blocks: int, block_size: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, block_size, 2, spec.num_kv_heads, spec.head_dim)
        self.layers = [_lazy_zeros(shape, spec.dtype) for _ in range(spec.num_layers)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.spec.block_size_bytes(self.block_size)

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        """Copy blocks in every layer; all sources are read before any target is written."""
        source_ids, target_ids = torch.from_numpy(sources), torch.from_numpy(targets)
        for layer in self.layers:
            layer[target_ids] = layer[source_ids]

    def zero_blocks(self, block_ids: Ints) -> None:
        """Fill blocks with zeros in every layer."""
        ids = torch.from_numpy(block_ids)
        for layer in self.layers:
            layer[ids] = 0


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory and no time before they are written: numpy leaves them to the system, torch does not."""
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(shape)
