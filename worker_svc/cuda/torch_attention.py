"""Attention of layers that torch computes on a device: a kernel if one supports the layer, otherwise gathered pages.

Models with gathered pages, or with states, need host metadata for each step, so their steps never run as a graph.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.attention.interface import AttentionShape, HeadSizes, LayerAttention
from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.gathered_pages import GatheredPages
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup
from tetrad.worker_svc.models.host import HostSteps

MAX_HEAD_DIM = 256
"""Largest size of a head that the attention kernels support; the same as in attention_launch.json."""


class TorchAttention:
    """The AttentionBackend of models whose layers torch computes.

    Args:
        heads: the heads of the KV cache.
        groups: the groups of the model's layers; a stage has no layers of some of them.

    Attributes:
        has_kernels: whether a created layer uses an attention kernel.
    """

    def __init__(self, heads: HeadSizes, groups: Sequence[LayerGroup]) -> None:
        self._heads, self._groups = heads, [(number, group) for number, group in enumerate(groups) if group.layers]
        self.has_kernels = self._has_gathers = False
        self._pages = GatheredPages(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            windows={number: group.sliding_window for number, group in self._groups if not group.is_state},
        )

    def layer(self, shape: AttentionShape) -> LayerAttention[DeviceStep]:
        """See AttentionBackend."""
        if self._heads.head_dim <= MAX_HEAD_DIM and shape.heads in (None, self._heads) and shape.chunk is None:
            self.has_kernels = True
            return LayerKernels(shape)
        self._has_gathers = True
        return GatheredLayer(self._pages.layer(shape))

    def host_steps(self) -> HostSteps | None:
        """Return the builder of host metadata for the layers created so far; None if they need none."""
        states = tuple(number for number, group in self._groups if group.is_state)
        pages = self._pages if self._has_gathers else None
        return HostSteps(pages, states) if pages or states else None


class GatheredLayer:
    """One layer's attention over gathered pages; see LayerAttention.

    Args:
        attention: the attention over the layer's gathered pages.
    """

    def __init__(self, attention: LayerAttention[PagedMetadata]) -> None:
        self._attention = attention

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: DeviceStep) -> torch.Tensor:
        """See LayerAttention."""
        assert metadata.pages is not None
        return self._attention.attend(query, key_value, cache, metadata.pages)


class LayerKernels:
    """One layer's attention by the device's kernels; see LayerAttention.

    Args:
        shape: the parameters of the attention.
    """

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: DeviceStep) -> torch.Tensor:
        """See LayerAttention."""
        # Keys and values of padding are written to the null block, which is never read.
        slots = metadata.kv_slots.clamp(min=0)
        # As bytes, because few operations support every type of cache.
        rows = key_value.to(cache.dtype).contiguous().view(torch.uint8)
        cache.view(-1, key_value.shape[1]).view(torch.uint8).index_copy_(0, slots, rows)
        heads = query.view(len(query), -1, cache.shape[-1])
        return metadata.attend(heads, cache, self._shape)
