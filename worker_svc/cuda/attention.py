"""Paged attention by kernels: splits the requests of a step by kernel (one query, many queries), and prepares their metadata.

Rows with one token are the first rows (step_inputs.py); their kernel takes parts of the keys from a list. The other rows are
computed in tiles of queries. Both kernels read their work in device memory, so a graph can record them with room for the
largest work. Dims: T tokens, B requests with one token, R requests in total, P blocks of the longest request.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.mixed_rows import MixedRows
from tetrad.worker_svc.cuda.sizes import DeviceSizes
from tetrad.worker_svc.kernels.attention_launch import prefill_block_rows
from tetrad.worker_svc.kernels.decode_attention import decode_attention
from tetrad.worker_svc.kernels.decode_parts import DecodeParts, PartSizes, list_parts
from tetrad.worker_svc.kernels.prefill_attention import prefill_attention, tiles_of
from tetrad.worker_svc.kv_cache.state_rows import StateRows


class PartLists:
    """The lists of the parts of a step's keys: one for each window, launched by the first layer with this window.

    Args:
        num_keys: [B] int32.
        sizes: determine the division of keys.
    """

    def __init__(self, num_keys: torch.Tensor, sizes: PartSizes) -> None:
        self._num_keys, self._sizes = num_keys, sizes
        self._of_windows: dict[int, DecodeParts] = {}

    def of_window(self, window: int) -> DecodeParts:
        """Return the list for layers with a window of this many keys; 0: no window."""
        if window not in self._of_windows:
            self._of_windows[window] = list_parts(self._num_keys, self._sizes, window=window)
        return self._of_windows[window]


@dataclass(frozen=True, slots=True)
class DecodePart:
    """The metadata of requests with one query each."""

    tables: torch.Tensor  # [B, P] int32
    parts: PartLists


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """The metadata of requests with several queries. Requests are those of the step; tiles name the ones with several."""

    tables: torch.Tensor  # [R, P] int32
    first_query: torch.Tensor  # [R + 1] int32
    num_keys: torch.Tensor  # [R] int32
    tiles: torch.Tensor  # [N, 2] int32, see tiles_of
    ends: torch.Tensor | None = None  # [T] int32, see StepInputs; None: no token attends to a later one


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The metadata that all layers of a KV group share in a step.

    Attributes:
        num_decodes: the number of first tokens that `decode` computes.
        decode: None: no request has one query.
        prefill: None: no request has several queries. It may overwrite tokens of `decode`, which are padding there.
        out: [T, H, D], written by each layer, whose padding stays 0; None: every layer has a result of its own.
    """

    num_decodes: int
    decode: DecodePart | None
    prefill: PrefillPart | None
    out: torch.Tensor | None = None

    def over(self, tables: torch.Tensor) -> "AttentionParts":
        """Return a copy with other block tables [R, P], those of another KV group."""
        decode = replace(self.decode, tables=tables[: self.num_decodes]) if self.decode else None
        prefill = replace(self.prefill, tables=tables) if self.prefill else None
        return replace(self, decode=decode, prefill=prefill)


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """The tiles of the requests with several queries.

    Attributes:
        group: number of query heads of a KV head.
        block_rows: rows of a tile.
    """

    group: int
    block_rows: int

    def of(self, rows: StepRows) -> npt.NDArray[np.int32]:
        """Return the tiles [N, 2] of a step; see tiles_of."""
        split = rows.num_decodes
        tiles = tiles_of(rows.num_scheduled[split:], self.group, self.block_rows, rows.num_computed[split:])
        tiles[:, 0] += split
        return tiles

    def most(self, num_tokens: int, num_rows: int) -> int:
        """Return the largest number of tiles of a step with these numbers of tokens and of requests."""
        return min(num_tokens, num_tokens // max(self.block_rows // self.group, 1) + num_rows)


class PagedAttention:
    """Attention over one layer's pages, by kernels.

    Args:
        config: the model's sizes.
        dtype: type of activations.
        cache_dtype: type of keys and values.
        accelerator: the device.
    """

    def __init__(
        self,
        config: DeviceSizes,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        accelerator: Accelerator,
    ) -> None:
        self._accelerator, self._dtype = accelerator, dtype
        group = config.num_heads // config.num_kv_heads
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        self._size = config.num_heads, config.head_dim
        self._part_sizes = PartSizes.on_device(*heads, dtype, cache_dtype, accelerator.device, accelerator.num_processors)
        rows = prefill_block_rows(config.head_dim, dtype, cache_dtype, accelerator.device)
        self.tiles = PromptTiles(group, max(rows, 1 << (group - 1).bit_length()))  # a tile has room for a query's heads

    def decode_part(self, tables: torch.Tensor, num_keys: torch.Tensor) -> DecodePart:
        """Return the metadata of requests with one query each. Its shape depends only on their number, as graphs require."""
        return DecodePart(tables, PartLists(num_keys, self._part_sizes))

    def parts(self, rows: StepRows, tables: torch.Tensor, ends: torch.Tensor | None = None) -> AttentionParts:
        """Return the attention metadata that a step's layers share.

        Args:
            rows: the rows of the step.
            tables: [R, P] int32, the rows' block tables.
            ends: see PrefillPart.
        """
        num_rows, split, tiles = len(rows.slots), rows.num_decodes, self.tiles.of(rows)
        columns = rows.num_computed + rows.num_scheduled, rows.first_token, [rows.num_tokens], tiles.reshape(-1)
        packed = self._accelerator.upload(np.concatenate(columns).astype(np.int32))
        num_keys, first_query = packed[:num_rows], packed[num_rows : 2 * num_rows + 1]
        decode = self.decode_part(tables[:split], num_keys[:split]) if split else None
        prefill = None
        if len(tiles):
            prefill = PrefillPart(tables, first_query, num_keys, packed[2 * num_rows + 1 :].view(-1, 2), ends)
        return AttentionParts(split, decode, prefill)

    def mixed_parts(self, rows: MixedRows, tables: torch.Tensor) -> AttentionParts:
        """Return the attention metadata of a graph with block tables [R, P]. Its shape depends only on the graph's size."""
        num_decodes = len(rows.decode_keys)
        decode = self.decode_part(tables[:num_decodes], rows.decode_keys)
        prefill = PrefillPart(tables, rows.first_query, rows.num_keys, rows.tiles)
        out = torch.zeros((rows.num_tokens, *self._size), dtype=self._dtype, device=self._accelerator.device)
        return AttentionParts(num_decodes, decode, prefill, out)

    def attend(self, query: torch.Tensor, cache: torch.Tensor, parts: AttentionParts, shape: AttentionShape) -> torch.Tensor:
        """Return the attention [T, H * D] of queries [T, H, D]; the layer's cache contains the step's keys and values."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if parts.out is None else parts.out
        if parts.decode is not None:
            split, decode = parts.num_decodes, parts.decode
            decode_attention(
                query[:split],
                cache,
                decode.tables,
                decode.parts.of_window(shape.window or 0),
                scale=shape.scale,
                softcap=shape.softcap,
                key_scale=shape.key_scale,
                value_scale=shape.value_scale,
                sinks=shape.sinks,
                slopes=shape.slopes,
                out=out[:split],
            )
        if parts.prefill is not None:
            prefill = parts.prefill
            prefill_attention(
                query,
                cache,
                prefill.tables,
                prefill.first_query,
                prefill.num_keys,
                prefill.tiles,
                scale=shape.scale,
                window=shape.window or 0,
                softcap=shape.softcap,
                key_scale=shape.key_scale,
                value_scale=shape.value_scale,
                sinks=shape.sinks,
                slopes=shape.slopes,
                ends=prefill.ends,
                block_rows=self.tiles.block_rows,
                out=out,
            )
        return out.flatten(1)


@dataclass(frozen=True, eq=False, slots=True)
class DeviceStep:
    """The metadata that all layers of a KV group share in a step.

    Attributes:
        kv_slots: [T] int64, block id * block_size + offset; negative: the token is padding, and is not written.
        parts: the metadata of attention kernels; None: no layer uses attention kernels.
        attention: computes attention over a layer's pages; None: no layer uses attention kernels.
        pages: the pages that layers without attention kernels gather; None: there are no such layers.
        states: the rows of states, for a group of layers with states; None: the group has keys and values.
    """

    kv_slots: torch.Tensor
    parts: AttentionParts | None
    attention: PagedAttention | None
    pages: PagedMetadata | None = None
    states: StateRows | None = None

    def attend(self, query: torch.Tensor, cache: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
        """Return the attention [T, H * D] of queries [T, H, D], by kernels; the cache contains the step's keys and values."""
        assert self.attention is not None and self.parts is not None
        return self.attention.attend(query, cache, self.parts, shape)
