"""Metadata of paged attention on the CPU: which pages a step gathers for a KV group, and which keys each query sees.

Built once per step and group by torch_paged.py. Pages that a window has passed are never gathered: they may be another
request's by then. Dims: T tokens, B decode rows, P pages, L = P * block_size keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepInputs

_GROUP_COST_PAGES = 24
"""A further group of rows costs about as much as gathering this many padded pages."""

_TILE = 256
"""Queries per tile of a chunk: half of a tile's square is computed in vain."""


class Sight(NamedTuple):
    """The keys up to itself that a query sees: in a window, in its own chunk of positions; None: all."""

    window: int | None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one or several sequences, equally many of each."""

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
    mask: torch.Tensor  # [B, L], 0 or -inf


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries start..stop of a chunk and the keys, counted from the chunk's first page, that any of them sees."""

    start: int
    stop: int
    keys: slice
    mask: torch.Tensor  # [stop - start, keys], 0 or -inf


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
    begun_pages: torch.Tensor  # [N] int64: this step writes their first slot, and not their last
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    in_chunks: "PagedMetadata | None" = None  # the same for layers whose queries see the keys of their own chunk


def build_paged_metadata(
    inputs: StepInputs, batch: Tables, group: int, window: int | None, chunk: int | None = None
) -> PagedMetadata:
    """Return a step's gather lists and masks.

    Args:
        inputs: of the step.
        batch: has the block tables.
        group: number of the KV group.
        window: keys that a query sees, itself included; None: all.
        chunk: positions to a chunk; None: no layer has chunks.
    """
    metadata = _build(inputs, batch, group, Sight(window))
    return metadata if chunk is None else replace(metadata, in_chunks=_build(inputs, batch, group, Sight(window, chunk)))


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
    mask = _mask(num_keys[:, None] - 1, first_pages[:, None] * block_size + np.arange(num_pages * block_size), sight)
    return DecodeGroup(rows.start, rows.stop, Pages.of(np.where(in_use, ids, 0)), mask)


def _chunk(inputs: StepInputs, row: int, table: np.ndarray, first_key: int, sight: Sight) -> Chunk:
    start, length = int(inputs.first_token[row]), int(inputs.num_scheduled[row])
    computed = int(inputs.num_computed[row])
    tiles = []
    for first in range(0, length, _TILE):
        last = min(first + _TILE, length)
        keys = np.arange(int(_first_keys(computed + first, sight)), computed + last)
        mask = _mask(np.arange(computed + first, computed + last)[:, None], keys, sight)
        tiles.append(Tile(first, last, slice(int(keys[0]) - first_key, computed + last - first_key), mask))
    return Chunk(start, start + length, Pages.of(table[None]), tuple(tiles))


def _similar_rows(num_pages: Ints) -> Iterator[slice]:
    """Cut rows sorted by falling length into groups, so that padding costs less than a further group would."""
    start, wasted = 0, 0
    for row, pages in enumerate(num_pages.tolist()):
        wasted += int(num_pages[start]) - pages
        if wasted > _GROUP_COST_PAGES:
            yield slice(start, row)
            start, wasted = row, 0
    if len(num_pages):
        yield slice(start, len(num_pages))


def _first_keys(positions: Ints | int, sight: Sight) -> Ints:
    """Return the first key that queries at these positions see."""
    first = np.zeros_like(positions)
    if sight.window is not None:
        first = np.maximum(first, np.asarray(positions) - (sight.window - 1))
    if sight.chunk is not None:
        first = np.maximum(first, np.asarray(positions) // sight.chunk * sight.chunk)
    return first


def _mask(positions: np.ndarray, keys: np.ndarray, sight: Sight) -> torch.Tensor:
    """Return [N, L]: 0 where a query at positions [N, 1] sees a key at [L] or [N, L], else -inf."""
    hidden = (keys > positions) | (keys < _first_keys(positions, sight))
    return torch.from_numpy(np.where(hidden, np.float32("-inf"), np.float32(0)))
