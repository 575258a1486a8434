"""Attention over gathered pages on a device, for layers without an attention kernel: too large heads, and chunked attention.

Called by the torch decoder's layers. The operations of the CPU device (attention/torch_paged.py) gather pages and compute
attention in float32, with gather lists and masks that the host builds for each step. Slower than a kernel, with the same
results.
Dims: B decode rows, P pages of each, L keys.
"""

import torch

from tetrad.worker_svc.attention.interface import HeadSizes
from tetrad.worker_svc.attention.paged_metadata import DecodeGroup, PagedMetadata, Pages
from tetrad.worker_svc.attention.torch_paged import TorchLayerAttention, TorchPagedAttention

_GATHERED_NUMBERS = 1 << 26
"""Largest number of values that are gathered at once for the decode rows of a group: 256 MiB of float32."""


class GatheredPages(TorchPagedAttention):
    """TorchPagedAttention with caches of any type on any device."""

    def attend(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: torch.Tensor,
        metadata: PagedMetadata,
        layer: TorchLayerAttention,
    ) -> torch.Tensor:
        """See TorchPagedAttention."""
        return super().attend(query.float(), key_value, cache, metadata, layer).to(query.dtype)

    def _output_like(self, query: torch.Tensor) -> torch.Tensor:
        # Kept between steps, it would take device memory that the memory profile counts twice, and while the model sleeps.
        return query.new_empty(query.shape)

    def _write(self, key_value: torch.Tensor, cache: torch.Tensor, metadata: PagedMetadata) -> None:
        # As bytes, because few operations support every type of cache.
        pages = cache.view(torch.uint8)
        pages.index_fill_(0, metadata.begun_pages, 0)
        rows = key_value.to(cache.dtype).contiguous().view(torch.uint8)
        slots = pages.flatten(0, 1).flatten(1)[:, : rows.shape[1]]
        slots.index_copy_(0, metadata.slot_mapping, rows)

    def _attend_decodes(
        self, query: torch.Tensor, cache: torch.Tensor, group: DecodeGroup, output: torch.Tensor, layer: TorchLayerAttention
    ) -> None:
        num_pages = len(group.pages.ids) // len(query)
        at_once = max(_GATHERED_NUMBERS // (num_pages * cache[0].numel()), 1)
        for start in range(0, len(query), at_once):
            rows = slice(start, min(start + at_once, len(query)))
            ids = group.pages.ids[rows.start * num_pages : rows.stop * num_pages]
            part = DecodeGroup(rows.start, rows.stop, Pages(ids, None), group.seen.of_rows(rows))
            super()._attend_decodes(query[rows], cache, part, output[rows], layer)

    def _gather(self, cache: torch.Tensor, pages: Pages, num_rows: int, heads: HeadSizes) -> tuple[torch.Tensor, torch.Tensor]:
        found = cache.view(torch.uint8).flatten(1).index_select(0, pages.ids).view(cache.dtype).float()
        slots = found.view(num_rows, -1, cache[0, 0].numel())[..., : 2 * heads.num_kv_heads * heads.head_dim]
        both = slots.view(num_rows, slots.shape[1], 2, heads.num_kv_heads, heads.head_dim)
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
