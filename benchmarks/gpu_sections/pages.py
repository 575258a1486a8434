"""Pages: random keys and values of requests in a paged cache, with blocks in a scattered order."""

from collections.abc import Sequence

import torch

from benchmarks.gpu_sections.bench import Bench
from tetrad.worker_svc.kernels.decode_parts import DecodeParts, PartSizes, list_parts


class Pages:
    """A layer's KV cache with some requests.

    Args:
        bench: the device.
        lengths: number of tokens of each request.
        num_kv_heads, head_dim: K and D.
        dtype: data type of keys and values.
        block_size: number of tokens per block.
    """

    def __init__(
        self,
        bench: Bench,
        lengths: Sequence[int],
        *,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.bfloat16,
        block_size: int = 16,
    ) -> None:
        counts = [-(-length // block_size) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).to(torch.int32)
        self.cache = bench.normal(sum(counts), block_size, 2, num_kv_heads, head_dim, dtype=dtype)
        """[num_blocks, block_size, 2, K, D]."""
        tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, mine in enumerate(torch.split(order, counts)):
            tables[row, : len(mine)] = mine
        self.tables = tables.to(bench.device)
        """[R, P] int32."""
        self.num_keys = torch.tensor(lengths, dtype=torch.int32, device=bench.device)
        self._lengths, self._num_processors = list(lengths), bench.accelerator.num_processors

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all keys and values."""
        return sum(self._lengths) * self.cache[0, 0].numel() * self.cache.element_size()

    def parts(self, num_heads: int, dtype: torch.dtype, window: int = 0) -> DecodeParts:
        """Return the parts of a decode step with this number of query heads of this type."""
        _, _, _, num_kv_heads, head_dim = self.cache.shape
        heads, types = (num_heads, num_kv_heads, head_dim), (dtype, self.cache.dtype)
        sizes = PartSizes.on_device(*heads, *types, self.cache.device, self._num_processors)
        return list_parts(self.num_keys, sizes, window=window)

    def of(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a request's keys and values [L, K, D]."""
        flat = self.cache[self.tables[row].long()].flatten(0, 1)[: self._lengths[row]]
        return flat[:, 0], flat[:, 1]
