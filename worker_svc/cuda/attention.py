"""Paged attention by kernels: splits the requests of a step by kernel (one query, many queries), and prepares their metadata.

Rows with one token are the first rows (step_inputs.py); their kernel takes parts of the keys from a list. The other rows are
computed in tiles of queries. Dims: T tokens, B requests with one token, R requests in total, P blocks of the longest request.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
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
    """The metadata of requests with several queries."""

    tables: torch.Tensor  # [R - B, P] int32
    first_query: torch.Tensor  # [R - B + 1] int32
    num_keys: torch.Tensor  # [R - B] int32
    tiles: torch.Tensor  # [N, 2] int32, see tiles_of


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The metadata that all layers of a KV group share in a step; the first `num_decodes` tokens belong to `decode`."""

    num_decodes: int
    decode: DecodePart | None
    prefill: PrefillPart | None

    def over(self, tables: torch.Tensor) -> "AttentionParts":
        """Return a copy with other block tables [R, P], those of another KV group."""
        split = self.num_decodes
        decode = replace(self.decode, tables=tables[:split]) if self.decode else None
        return AttentionParts(split, decode, replace(self.prefill, tables=tables[split:]) if self.prefill else None)


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
        self._accelerator = accelerator
        self._group = config.num_heads // config.num_kv_heads
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        self._part_sizes = PartSizes.on_device(*heads, dtype, cache_dtype, accelerator.device, accelerator.num_processors)
        rows = prefill_block_rows(config.head_dim, dtype, cache_dtype, accelerator.device)
        self._tile_rows = max(rows, 1 << (self._group - 1).bit_length())  # a tile has room for all heads of a query

    def decode_part(self, tables: torch.Tensor, num_keys: torch.Tensor) -> DecodePart:
        """Return the metadata of requests with one query each. Its shape depends only on their number, as graphs require."""
        return DecodePart(tables, PartLists(num_keys, self._part_sizes))

    def parts(self, rows: StepRows, tables: torch.Tensor) -> AttentionParts:
        """Return the attention metadata that a step's layers share.

        Args:
            rows: the rows of the step.
            tables: [R, P] int32, the rows' block tables.
        """
        num_keys, split = rows.num_computed + rows.num_scheduled, rows.num_decodes
        lengths = self._accelerator.upload(num_keys.astype(np.int32))
        decode = self.decode_part(tables[:split], lengths[:split]) if split else None
        prefill = None
        if split < len(rows.slots):
            prefill = self._prefill(rows.num_scheduled[split:], rows.num_computed[split:], tables[split:], lengths[split:])
        return AttentionParts(split, decode, prefill)

    def attend(self, query: torch.Tensor, cache: torch.Tensor, parts: AttentionParts, shape: AttentionShape) -> torch.Tensor:
        """Return the attention [T, H * D] of queries [T, H, D]; the layer's cache contains the step's keys and values."""
        split, found = parts.num_decodes, []
        if parts.decode is not None:
            decode = parts.decode
            found.append(
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
                )
            )
        if parts.prefill is not None:
            prefill = parts.prefill
            found.append(
                prefill_attention(
                    query[split:],
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
                    block_rows=self._tile_rows,
                )
            )
        return (found[0] if len(found) == 1 else torch.cat(found)).flatten(1)

    def _prefill(self, num_queries: Ints, num_computed: Ints, tables: torch.Tensor, num_keys: torch.Tensor) -> PrefillPart:
        tiles = tiles_of(num_queries, self._group, self._tile_rows, num_computed)
        first_query = np.concatenate([[0], np.cumsum(num_queries)]).astype(np.int32)
        packed = self._accelerator.upload(np.concatenate([first_query, tiles.reshape(-1)]))
        return PrefillPart(tables, packed[: len(first_query)], num_keys, packed[len(first_query) :].view(-1, 2))


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
