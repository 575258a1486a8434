"""Torch decoder on a device, for models that the kernel decoder does not support: slower, with the same tokens.

Layers use an attention kernel if one supports them; other layers gather their pages (gathered_pages.py). Steps of a model with
such layers, or with states, never run as a graph.
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.attention.interface import AttentionShape, LayerAttention
from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.experts import mix_of
from tetrad.worker_svc.cuda.gathered_pages import GatheredPages
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import groups_of
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.decoder import Decoder, GivenEmbeddings
from tetrad.worker_svc.models.host import HostSteps

MAX_HEAD_DIM = 256
"""Largest size of a head that the attention kernels support; the same as in attention_launch.json."""


class TorchDecoder:
    """A decoder with any traits; see DeviceModel.

    Args:
        config: the model's description.
        parameters: the model's weights.
        kv_cache_dtype: type of keys and values.
        device: device of all tensors.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters, kv_cache_dtype: torch.dtype, device: torch.device) -> None:
        attention = _Attention(config)
        self._decoder = Decoder(config, parameters, attention, mix_of, device)
        self.config, self.dtype = config, self._decoder.dtype
        groups = groups_of(config)
        # States are float32, so a cache that only has states is float32 too.
        dtype = torch.float32 if groups and all(group.is_state for group in groups) else kv_cache_dtype
        self.kv_cache_spec = KvCacheSpec(groups, config.num_kv_heads, config.head_dim, dtype, state_size=config.state_size)
        self.has_kernel_attention, self.host_steps = attention.has_kernels, attention.host_steps()

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Sequence[DeviceStep],
        *,
        given: GivenEmbeddings | None = None,
    ) -> torch.Tensor:
        """See DeviceModel."""
        states = {group: step.states for group, step in enumerate(metadata) if step.states is not None}
        return self._decoder.forward(token_ids, positions, caches, metadata, states, given)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DeviceModel."""
        return self._decoder.normed(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DeviceModel."""
        return self._decoder.logits(hidden)


class _Attention:
    """The AttentionBackend of the torch decoder on a device.

    Attributes:
        has_kernels: whether a created layer uses an attention kernel.

    Args:
        config: the model's description.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._is_in_kernels, self.has_kernels, self._has_gathers = config.head_dim <= MAX_HEAD_DIM, False, False
        self._groups = list(enumerate(groups_of(config)))
        self._pages = GatheredPages(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            windows={number: group.sliding_window for number, group in self._groups if not group.is_state},
        )

    def layer(self, shape: AttentionShape) -> LayerAttention[DeviceStep]:
        """See AttentionBackend."""
        if self._is_in_kernels and shape.chunk is None:
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
