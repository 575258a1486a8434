"""A model of transformers on a device, with the interface that the CUDA runner calls.

Its steps never run as a graph, because a model's code may wait for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.torch_attention import TorchAttention
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.models.decoder import GivenEmbeddings
from tetrad.worker_svc.models.transformers_backend.loading import LoadedModule
from tetrad.worker_svc.models.transformers_backend.module import PagedModule
from tetrad.worker_svc.models.transformers_backend.probe import LayerCall, cache_heads


@dataclass(frozen=True, slots=True)
class _Sizes:
    """See DeviceSizes."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    embedding_size: int = 0


class DeviceTransformersModel:
    """A model that transformers' code runs on a device; see DeviceModel.

    Args:
        loaded: the module in host memory; this model moves it to the device.
        layers: the attention of its layers.
        dtype: type of its weights.
        kv_cache_dtype: type of keys and values.
        device: device of all tensors.
    """

    def __init__(
        self,
        loaded: LoadedModule,
        layers: Sequence[LayerCall],
        dtype: torch.dtype,
        kv_cache_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        groups, heads = group_layers([layer.window for layer in layers]), cache_heads(layers)
        attention = TorchAttention(heads, groups)
        module = loaded.module.to(device)
        self._paged = PagedModule(module, [(layer, attention.layer(_on(layer.shape, device))) for layer in layers], groups)
        self._tensors = [*module.parameters(), *module.buffers()]  # moved when the model sleeps
        self.config = _Sizes(loaded.vocab_size, loaded.hidden_size, loaded.max_position_embeddings, *heads)
        self.dtype = dtype
        self.kv_cache_spec = KvCacheSpec(groups, heads.num_kv_heads, heads.head_dim, kv_cache_dtype)
        self.has_kernel_attention, self.host_steps = attention.has_kernels, attention.host_steps()
        self.bytes_per_draft = 0

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Sequence[DeviceStep],
        *,
        given: GivenEmbeddings | None = None,
        axes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See DeviceModel; the hidden states are normed."""
        assert given is None and axes is None, "see embedding_size; its tower is not loaded"
        return self._paged.forward(token_ids.long(), positions.long(), caches, metadata)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [N, hidden] unchanged: `forward` has normed them."""
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DeviceModel."""
        return self._paged.logits(hidden)


def _on(shape: AttentionShape, device: torch.device) -> AttentionShape:
    return shape if shape.sinks is None else replace(shape, sinks=shape.sinks.to(device))
