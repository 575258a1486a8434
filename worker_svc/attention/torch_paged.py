"""Paged attention for CPU: pages are gathered, then torch's fused attention runs over them.

Dims: T tokens, B decode rows, P pages, L = P * block_size keys, K kv heads, G query heads per kv head, D head size. Grouped-
query attention never repeats keys: decodes fold G into the query length ([B, K, G, D] against [B, K, L, D]), chunks give G a
stride of zero. Decodes of similar length share one gather; pages padded to the group's longest row are masked. A chunk
attends in tiles of queries, each to no more keys than its last query may see.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepInputs

_GROUP_COST_PAGES = 24
"""A further group costs about as much as gathering this many padded pages."""

_TILE = 256
"""Queries per tile of a chunk: half of a tile's square is computed in vain."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one or several sequences, `num_pages` each."""

    ids: torch.Tensor  # [B * P] int64
    first: int | None  # set: the ids are first, first + 1, ..., so a view does instead of a gather

    @classmethod
    def of(cls, table: np.ndarray) -> "Pages":
        """Return the pages of a table [B, P]."""
        flat = table.reshape(-1).astype(np.int64)
        is_run = len(table) == 1 and bool((np.diff(flat) == 1).all())
        return cls(torch.from_numpy(flat), int(flat[0]) if is_run else None)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Consecutive decode rows that share a gather."""

    start: int
    stop: int
    pages: Pages
    mask: torch.Tensor  # [B, 1, 1 or G, L], 0 or -inf


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries start..stop of a chunk and how many keys they see."""

    start: int
    stop: int
    num_keys: int
    mask: torch.Tensor  # [stop - start, num_keys], 0 or -inf


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's tokens start..stop of the step."""

    start: int
    stop: int
    pages: Pages
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """What all layers of a step share."""

    slot_mapping: torch.Tensor  # [T] int64
    begun_pages: torch.Tensor  # [N] int64: this step writes their first slot, and not their last
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


class TorchPagedAttention:
    """AttentionBackend over torch operations; owned by the compute thread, keeps its workspace between calls.

    Args:
        num_heads, num_kv_heads, head_dim: of the model.
        sliding_window: keys that a query sees, itself included; None: all.
    """

    def __init__(self, *, num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None = None) -> None:
        self._kv_heads, self._groups, self._head_dim = num_kv_heads, num_heads // num_kv_heads, head_dim
        self._window = sliding_window
        self._workspace = torch.empty(0)
        self._output = torch.empty(0)

    def build_metadata(self, inputs: StepInputs, batch: InputBatch) -> PagedMetadata:
        """Return the step's gather lists and masks."""
        tables = batch.block_tables[inputs.slots]
        num_keys = inputs.num_computed + inputs.num_scheduled
        num_pages = -(-num_keys // batch.block_size)
        rows = range(inputs.num_decodes, len(inputs.slots))
        is_begun = ((num_pages - 1) * batch.block_size >= inputs.num_computed) & (num_keys % batch.block_size > 0)
        last_pages = tables[np.arange(len(tables)), num_pages - 1]
        return PagedMetadata(
            slot_mapping=torch.from_numpy(inputs.slot_mapping),
            begun_pages=torch.from_numpy(last_pages[is_begun].astype(np.int64)),
            groups=tuple(
                self._group(start, stop, tables[start:stop, : num_pages[start]], num_keys[start:stop], batch.block_size)
                for start, stop in _similar_rows(num_pages[: inputs.num_decodes])
            ),
            chunks=tuple(self._chunk(inputs, row, tables[row : row + 1, : num_pages[row]]) for row in rows),
        )

    def attend(
        self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: PagedMetadata
    ) -> torch.Tensor:
        """Write all keys and values of the step, then attend; see AttentionBackend."""
        if len(metadata.begun_pages):
            # The last slots are masked, but -inf and weights of 0 do not undo a NaN that an earlier request has left there.
            cache.index_fill_(0, metadata.begun_pages, 0)
        cache.view(-1, key_value.shape[1]).index_copy_(0, metadata.slot_mapping, key_value)
        output = self._output_like(query)
        for group in metadata.groups:
            self._attend_decodes(query[group.start : group.stop], cache, group, output[group.start : group.stop])
        for chunk in metadata.chunks:
            self._attend_chunk(query[chunk.start : chunk.stop], cache, chunk, output[chunk.start : chunk.stop])
        return output

    def _attend_decodes(self, query: torch.Tensor, cache: torch.Tensor, group: DecodeGroup, output: torch.Tensor) -> None:
        shape = (len(query), self._kv_heads, self._groups, self._head_dim)
        key, value = self._gather(cache, group.pages, len(query))
        result = F.scaled_dot_product_attention(query.view(shape), key, value, attn_mask=group.mask)
        output.view(shape).copy_(result)

    def _attend_chunk(self, query: torch.Tensor, cache: torch.Tensor, chunk: Chunk, output: torch.Tensor) -> None:
        key, value = (part.transpose(0, 1).expand(-1, self._groups, -1, -1) for part in self._gather(cache, chunk.pages, 1))
        queries, results = self._by_head(query), self._by_head(output)
        for tile in chunk.tiles:
            rows, keys = slice(tile.start, tile.stop), slice(0, tile.num_keys)
            result = F.scaled_dot_product_attention(
                queries[:, :, rows], key[:, :, keys], value[:, :, keys], attn_mask=tile.mask
            )
            results[:, :, rows].copy_(result)

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a view [K, G, T, D] of [T, K * G * D]."""
        return rows.view(-1, self._kv_heads, self._groups, self._head_dim).permute(1, 2, 0, 3)

    def _gather(self, cache: torch.Tensor, pages: Pages, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [B, K, L, D] of the pages: views of the cache if they lie in a row, else of the workspace."""
        num_pages = len(pages.ids)
        if pages.first is not None:
            found = cache[pages.first : pages.first + num_pages]
        else:
            page_size = cache[0].numel()
            if self._workspace.numel() < num_pages * page_size:
                self._workspace = torch.empty(num_pages * page_size, dtype=cache.dtype)
            found = self._workspace[: num_pages * page_size].view(num_pages, page_size)
            torch.index_select(cache.view(-1, page_size), 0, pages.ids, out=found)
        both = found.view(num_rows, -1, 2, self._kv_heads, self._head_dim)
        return both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)

    def _output_like(self, query: torch.Tensor) -> torch.Tensor:
        if self._output.shape[:1] < query.shape[:1]:
            self._output = torch.empty(query.shape, dtype=query.dtype)
        return self._output[: len(query)]

    def _group(self, start: int, stop: int, table: np.ndarray, num_keys: np.ndarray, block_size: int) -> DecodeGroup:
        num_pages = table.shape[1]
        in_use = np.arange(num_pages) * block_size < num_keys[:, None]
        mask = _mask(num_keys[:, None] - 1, num_pages * block_size, self._window)
        shape = (stop - start, self._kv_heads, self._groups, num_pages * block_size)
        return DecodeGroup(start, stop, Pages.of(np.where(in_use, table, 0)), mask[:, None].expand(shape))

    def _chunk(self, inputs: StepInputs, row: int, table: np.ndarray) -> Chunk:
        start, length = int(inputs.first_token[row]), int(inputs.num_scheduled[row])
        computed = int(inputs.num_computed[row])
        tiles = []
        for first in range(0, length, _TILE):
            last = min(first + _TILE, length)
            positions = np.arange(computed + first, computed + last)[:, None]
            mask = _mask(positions, computed + last, self._window)[:, 0]
            tiles.append(Tile(first, last, computed + last, mask))
        return Chunk(start, start + length, Pages.of(table), tuple(tiles))


def _similar_rows(num_pages: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut rows sorted by falling length into groups, so that padding costs less than a further group would."""
    start, wasted = 0, 0
    for row, pages in enumerate(num_pages.tolist()):
        wasted += int(num_pages[start]) - pages
        if wasted > _GROUP_COST_PAGES:
            yield start, row
            start, wasted = row, 0
    if len(num_pages):
        yield start, len(num_pages)


def _mask(positions: np.ndarray, num_keys: int, window: int | None) -> torch.Tensor:
    """Return [N, 1, num_keys]: 0 where a query at positions[n, 0] sees the key, else -inf."""
    keys = np.arange(num_keys)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0)))[:, None]
