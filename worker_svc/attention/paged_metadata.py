"""Metadata of paged attention on the CPU: the pages that a step gathers for a KV group, and the masks of queries and keys.

Built once per step and group by torch_paged.py. Pages before a window are never gathered, because they may belong to another
request by then. Dims: T tokens, B decode rows, P pages, L = P * block_size keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.attention.scores import Seen
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepInputs

_GROUP_COST_PAGES = 24
"""Cost of a further group of rows, as the number of padded pages that take the same time to gather."""

_TILE = 256
"""Number of queries in a tile of a chunk. A tile computes a square of scores, of which causal attention uses half."""


class Sight(NamedTuple):
    """The limits of the earlier keys that a query attends to: a window, and its own chunk of positions; None: no limit.

    `has_distances`: whether layers need the distances of keys.
    """

    window: int | None
    chunk: int | None = None
    has_distances: bool = False


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one or several sequences, with the same number of pages each."""

    ids: torch.Tensor  # [B * P] int64
    first: int | None  # if set, the ids are first, first + 1, ..., so a view replaces the gather

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
    seen: Seen  # [B, L]


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries start..stop of a chunk, and the keys that any of them attends to, numbered from the chunk's first page."""

    start: int
    stop: int
    keys: slice
    seen: Seen  # [stop - start, keys]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's tokens start..stop of the step."""

    start: int
    stop: int
    pages: Pages
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """The metadata that all layers of a KV group share in a step."""

    slot_mapping: torch.Tensor  # [T] int64
    begun_pages: torch.Tensor  # [N] int64, pages whose first slot this step writes, but not their last
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    in_chunks: "PagedMetadata | None" = None  # the same for layers with chunked attention


def build_paged_metadata(
    inputs: StepInputs,
    batch: Tables,
    group: int,
    window: int | None,
    chunk: int | None = None,
    *,
    has_distances: bool = False,
) -> PagedMetadata:
    """Return a step's gather lists and masks.

    Args:
        inputs: the step's inputs.
        batch: contains the block tables.
        group: number of the KV group.
        window: number of keys that a query attends to, itself included; None: all.
        chunk: number of positions in a chunk; None: no layer has chunks.
        has_distances: whether layers need the distances of keys.
    """
    metadata = _build(inputs, batch, group, Sight(window, None, has_distances))
    if chunk is None:
        return metadata
    return replace(metadata, in_chunks=_build(inputs, batch, group, Sight(window, chunk, has_distances)))


def _build(inputs: StepInputs, batch: Tables, group: int, sight: Sight) -> PagedMetadata:
    tables, block_size = batch.block_tables[group, inputs.slots], batch.block_size
    num_keys = inputs.num_computed + inputs.num_scheduled
    num_pages = -(-num_keys // block_size)
    first_pages = _first_keys(inputs.num_computed, sight) // block_size
    is_begun = ((num_pages - 1) * block_size >= inputs.num_computed) & (num_keys % block_size > 0)
    last_pages = tables[np.arange(len(tables)), num_pages - 1]
    return PagedMetadata(
        slot_mapping=torch.from_numpy(inputs.slot_mappings[group]),
        begun_pages=torch.from_numpy(last_pages[is_begun].astype(np.int64)),
        groups=tuple(
            _decode_group(rows, tables[rows], num_keys[rows], first_pages[rows], sight, block_size)
            for rows in _similar_rows((num_pages - first_pages)[: inputs.num_decodes])
        ),
        chunks=tuple(
            _chunk(inputs, row, tables[row, first_pages[row] : num_pages[row]], int(first_pages[row]) * block_size, sight)
            for row in range(inputs.num_decodes, len(inputs.slots))
        ),
    )


def _decode_group(
    rows: slice, tables: np.ndarray, num_keys: Ints, first_pages: Ints, sight: Sight, block_size: int
) -> DecodeGroup:
    num_pages = int((-(-num_keys // block_size) - first_pages).max())
    places = first_pages[:, None] + np.arange(num_pages)
    in_use = places * block_size < num_keys[:, None]
    ids = np.take_along_axis(tables, np.where(in_use, places, 0), 1)
    places = first_pages[:, None] * block_size + np.arange(num_pages * block_size)
    seen = _seen(num_keys[:, None] - 1, places, sight, num_keys[:, None])
    return DecodeGroup(rows.start, rows.stop, Pages.of(np.where(in_use, ids, 0)), seen)


def _chunk(inputs: StepInputs, row: int, table: np.ndarray, first_key: int, sight: Sight) -> Chunk:
    start, length = int(inputs.first_token[row]), int(inputs.num_scheduled[row])
    computed = int(inputs.num_computed[row])
    positions = np.arange(computed, computed + length)
    ends = positions + 1 if inputs.ends is None else inputs.ends[start : start + length]
    tiles = []
    for first in range(0, length, _TILE):
        last = min(first + _TILE, length)
        first_seen, end = int(_first_keys(computed + first, sight)), int(ends[first:last].max())
        seen = _seen(positions[first:last, None], np.arange(first_seen, end), sight, ends[first:last, None])
        tiles.append(Tile(first, last, slice(first_seen - first_key, end - first_key), seen))
    return Chunk(start, start + length, Pages.of(table[None]), tuple(tiles))


def _similar_rows(num_pages: Ints) -> Iterator[slice]:
    """Divide rows, sorted by descending length, into groups, so that padding costs less than a further group."""
    start, wasted = 0, 0
    for row, pages in enumerate(num_pages.tolist()):
        wasted += int(num_pages[start]) - pages
        if wasted > _GROUP_COST_PAGES:
            yield slice(start, row)
            start, wasted = row, 0
    if len(num_pages):
        yield slice(start, len(num_pages))


def _first_keys(positions: Ints | int, sight: Sight) -> Ints:
    """Return the first key that queries at these positions attend to."""
    first = np.zeros_like(positions)
    if sight.window is not None:
        first = np.maximum(first, np.asarray(positions) - (sight.window - 1))
    if sight.chunk is not None:
        first = np.maximum(first, np.asarray(positions) // sight.chunk * sight.chunk)
    return first


def _seen(positions: np.ndarray, keys: np.ndarray, sight: Sight, ends: np.ndarray) -> Seen:
    """Return what the queries at positions [N, 1] see of the keys at keys [L] or [N, L], before their ends [N, 1]."""
    hidden = (keys >= ends) | (keys < _first_keys(positions, sight))
    mask = torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0)))
    return Seen(mask, torch.from_numpy((keys - positions).astype(np.float32)) if sight.has_distances else None)
