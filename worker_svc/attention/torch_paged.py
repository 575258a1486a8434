"""Paged attention in torch: gathers pages, then runs torch's fused attention over them.

Dims: T tokens, B decode rows, P pages, L = P * block_size keys, K kv heads, G query heads per kv head, D head size. Grouped-
query attention never repeats keys: decodes fold G into the query length ([B, K, G, D] against [B, K, L, D]), chunks give G a
stride of zero. Decodes of similar length share one gather; pages padded to the group's longest row are masked. A chunk is
computed in tiles of queries; a tile reads only the keys that its queries attend to.
"""

from collections.abc import Mapping

import torch

from tetrad.worker_svc.attention.interface import AttentionShape, HeadSizes, Tables
from tetrad.worker_svc.attention.paged_metadata import Chunk, DecodeGroup, PagedMetadata, Pages, build_paged_metadata
from tetrad.worker_svc.attention.scores import Scores, scores_of
from tetrad.worker_svc.core.step_inputs import StepInputs


class TorchPagedAttention:
    """An AttentionBackend with torch operations; owned by the compute thread. It keeps its workspace between calls.

    Args:
        num_heads, num_kv_heads, head_dim: the heads of the model.
        windows: the windows of the KV groups with attention, by group number: number of keys that a query attends to,
            itself included; None: all.
    """

    def __init__(self, *, num_heads: int, num_kv_heads: int, head_dim: int, windows: Mapping[int, int | None]) -> None:
        self._heads = HeadSizes(num_heads, num_kv_heads, head_dim)
        self._windows = dict(windows)
        self._chunk: int | None = None
        self._has_slopes = False
        self._workspace = torch.empty(0)
        self._output = torch.empty(0)

    def layer(self, shape: AttentionShape) -> "TorchLayerAttention | ChunkedLayerAttention":
        """See AttentionBackend."""
        heads = shape.heads or self._heads
        attention = TorchLayerAttention(self, heads, scores_of(shape, heads.num_kv_heads))
        self._has_slopes |= shape.slopes is not None
        if shape.chunk is None:
            return attention
        assert self._chunk in (None, shape.chunk), "a model has chunks of one size"
        self._chunk = shape.chunk
        return ChunkedLayerAttention(attention)

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> dict[int, PagedMetadata]:
        """Return the step's gather lists and masks for each KV group with attention; see MetadataBuilder."""
        return {
            group: build_paged_metadata(inputs, batch, group, window, self._chunk, has_distances=self._has_slopes)
            for group, window in self._windows.items()
        }

    def attend(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: torch.Tensor,
        metadata: PagedMetadata,
        layer: "TorchLayerAttention",
    ) -> torch.Tensor:
        """Write all keys and values of the step, then compute attention; see LayerAttention."""
        self._write(key_value, cache, metadata)
        output = self._output_like(query)
        for group in metadata.groups:
            self._attend_decodes(query[group.start : group.stop], cache, group, output[group.start : group.stop], layer)
        for chunk in metadata.chunks:
            self._attend_chunk(query[chunk.start : chunk.stop], cache, chunk, output[chunk.start : chunk.stop], layer)
        return output

    def _write(self, key_value: torch.Tensor, cache: torch.Tensor, metadata: PagedMetadata) -> None:
        if len(metadata.begun_pages):
            # The last slots are masked, but -inf and weights of 0 do not remove a NaN that an earlier request has left there.
            cache.index_fill_(0, metadata.begun_pages, 0)
        slots = cache.flatten(0, 1).flatten(1)[:, : key_value.shape[1]]
        slots.index_copy_(0, metadata.slot_mapping, key_value)

    def _attend_decodes(
        self, query: torch.Tensor, cache: torch.Tensor, group: DecodeGroup, output: torch.Tensor, layer: "TorchLayerAttention"
    ) -> None:
        heads = layer.heads
        shape = (len(query), heads.num_kv_heads, heads.num_heads // heads.num_kv_heads, heads.head_dim)
        key, value = self._gather(cache, group.pages, len(query), heads)
        output.view(shape).copy_(layer.scores.decodes(query.view(shape), key, value, group.seen))

    def _attend_chunk(
        self, query: torch.Tensor, cache: torch.Tensor, chunk: Chunk, output: torch.Tensor, layer: "TorchLayerAttention"
    ) -> None:
        heads = layer.heads
        num_groups = heads.num_heads // heads.num_kv_heads
        key, value = (
            part.transpose(0, 1).expand(-1, num_groups, -1, -1) for part in self._gather(cache, chunk.pages, 1, heads)
        )
        # [T, K * G * D] -> [K, G, T, D]
        queries, results = (
            rows.view(-1, heads.num_kv_heads, num_groups, heads.head_dim).permute(1, 2, 0, 3) for rows in (query, output)
        )
        for tile in chunk.tiles:
            rows, keys = slice(tile.start, tile.stop), tile.keys
            results[:, :, rows].copy_(layer.scores.chunk(queries[:, :, rows], key[:, :, keys], value[:, :, keys], tile.seen))

    def _gather(self, cache: torch.Tensor, pages: Pages, num_rows: int, heads: HeadSizes) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [B, K, L, D] of the pages: views of the cache if contiguous, else of the workspace."""
        num_pages = len(pages.ids)
        if pages.first is not None:
            found = cache[pages.first : pages.first + num_pages]
        else:
            page_size = cache[0].numel()
            if self._workspace.numel() < num_pages * page_size:
                self._workspace = torch.empty(num_pages * page_size, dtype=cache.dtype)
            found = self._workspace[: num_pages * page_size].view(num_pages, page_size)
            torch.index_select(cache.view(-1, page_size), 0, pages.ids, out=found)
        slots = found.view(num_rows, -1, cache[0, 0].numel())[..., : 2 * heads.num_kv_heads * heads.head_dim]
        both = slots.view(num_rows, slots.shape[1], 2, heads.num_kv_heads, heads.head_dim)
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)

    def _output_like(self, query: torch.Tensor) -> torch.Tensor:
        if self._output.numel() < query.numel():
            self._output = query.new_empty(query.numel())
        return self._output[: query.numel()].view(query.shape)


class TorchLayerAttention:
    """One layer's attention; see LayerAttention.

    Args:
        pages: the backend of all layers.
        heads: the heads of this layer.
        scores: computes attention from queries, keys and values.
    """

    def __init__(self, pages: TorchPagedAttention, heads: HeadSizes, scores: Scores) -> None:
        self._pages, self.heads, self.scores = pages, heads, scores

    def attend(
        self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: PagedMetadata
    ) -> torch.Tensor:
        """See LayerAttention."""
        return self._pages.attend(query, key_value, cache, metadata, self)


class ChunkedLayerAttention:
    """One layer's attention in which queries attend to the keys of their own chunk; see LayerAttention.

    Args:
        attention: computes attention over the keys of the metadata.
    """

    def __init__(self, attention: TorchLayerAttention) -> None:
        self._attention = attention

    def attend(
        self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: PagedMetadata
    ) -> torch.Tensor:
        """See LayerAttention."""
        assert metadata.in_chunks is not None
        return self._attention.attend(query, key_value, cache, metadata.in_chunks)
