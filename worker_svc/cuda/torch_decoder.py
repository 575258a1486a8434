"""The torch decoder on a device, for models that the kernels' program does not support: slower, except for attention itself."""

import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.layers.experts import all_mixes
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.traits import Trait
from tetrad.worker_svc.models.decoder import Decoder

NOT_ON_GPU = frozenset({Trait.CHUNKS, Trait.STATES})
"""What the attention kernels, which this program has, do not compute; and states, which its graphs of decodes do not carry."""


class TorchDecoder(Decoder[DeviceStep]):
    """A decoder of any traits; see DeviceModel.

    Args:
        config: its description.
        parameters: its weights.
        kv_cache_dtype: of keys and values.
        device: of all tensors.
    """

    def __init__(self, config: ModelConfig, parameters: Parameters, kv_cache_dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, parameters, _Kernels(), all_mixes, device)
        groups = group_layers(config.cache_kinds)
        self.kv_cache_spec = KvCacheSpec(groups, config.num_kv_heads, config.head_dim, kv_cache_dtype)


class _Kernels:
    """The AttentionBackend."""

    def layer(self, shape: AttentionShape) -> "LayerKernels":
        """See AttentionBackend."""
        return LayerKernels(shape)


class LayerKernels:
    """One layer's attention by the device's kernels; see LayerAttention.

    Args:
        shape: what it computes.
    """

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape

    def attend(self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, metadata: DeviceStep) -> torch.Tensor:
        """See LayerAttention."""
        # Keys and values of padding go to the null block, which is never read.
        slots = metadata.kv_slots.clamp(min=0)
        # As bytes: few operations know every type that a cache may have.
        rows = key_value.to(cache.dtype).contiguous().view(torch.uint8)
        cache.view(-1, key_value.shape[1]).view(torch.uint8).index_copy_(0, slots, rows)
        heads = query.view(len(query), -1, cache.shape[-1])
        return metadata.attention.attend(heads, cache, metadata.parts, self._shape)
