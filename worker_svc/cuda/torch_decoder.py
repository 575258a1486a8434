"""Torch decoder on a device, for models that the kernel decoder does not support: slower, with the same tokens.

Layers use an attention kernel if one supports them; other layers gather their pages (torch_attention.py).
"""

from collections.abc import Sequence

import torch

from tetrad.worker_svc.attention.interface import HeadSizes
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.experts import mix_of
from tetrad.worker_svc.cuda.interface import DeviceParameters
from tetrad.worker_svc.cuda.torch_attention import TorchAttention
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import groups_of
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.states import bytes_per_draft
from tetrad.worker_svc.models.decoder import Decoder, GivenEmbeddings
from tetrad.worker_svc.models.draft_head import NoTaps, Taps


class TorchDecoder:
    """A decoder with any traits, or a stage of one; see DeviceModel.

    Args:
        config: the model's description.
        parameters: the model's weights.
        kv_cache_dtype: type of keys and values.
        device: device of all tensors.
        taps: reads hidden states between layers.
        ranks, vocab_size: see Decoder.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: DeviceParameters,
        kv_cache_dtype: torch.dtype,
        device: torch.device,
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
        ranks: Collectives | None = None,
        vocab_size: int | None = None,
    ) -> None:
        groups = groups_of(config)
        attention = TorchAttention(HeadSizes(config.num_heads, config.num_kv_heads, config.head_dim), groups)
        self._decoder = Decoder(config, parameters, attention, mix_of, device, ranks, vocab_size, taps)
        self.config, self.dtype = self._decoder.config, parameters.dtype
        # States are float32, so a cache that only has states is float32 too.
        dtype = torch.float32 if groups and all(group.is_state for group in groups) else kv_cache_dtype
        self.kv_cache_spec = KvCacheSpec(groups, config.num_kv_heads, config.head_dim, dtype, state_size=config.state_size)
        self.has_kernel_attention, self.host_steps = attention.has_kernels, attention.host_steps()
        states = [layer.state for layer in config.layers if layer.state]
        self.bytes_per_draft = sum(bytes_per_draft(state, self.dtype.itemsize) for state in states)

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
        """See DeviceModel."""
        states = {group: step.states for group, step in enumerate(metadata) if step.states is not None}
        return self._decoder.forward(token_ids, positions, caches, metadata, states, given, axes)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See Decoder."""
        return self._decoder.embed(token_ids)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DeviceModel."""
        return self._decoder.normed(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DeviceModel."""
        return self._decoder.logits(hidden)
