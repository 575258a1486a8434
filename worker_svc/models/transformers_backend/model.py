"""A model of transformers with KV pages in host memory, and with the interface that the runner calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.attention.torch_paged import TorchPagedAttention
from tetrad.worker_svc.core.plan import Floats, GivenRows, Ints
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.models.interface import ModelSizes
from tetrad.worker_svc.models.transformers_backend.module import PagedModule
from tetrad.worker_svc.models.transformers_backend.probe import LayerCall, cache_heads


class TransformersModel:
    """A model that transformers' code runs; see Model.

    Args:
        module: the module of a causal model, in float32.
        layers: the attention of its layers.
        config: its sizes.
    """

    embedding_size = 0

    def __init__(self, module: Any, layers: Sequence[LayerCall], config: ModelSizes) -> None:
        self.config = config
        groups = group_layers([layer.window for layer in layers])
        heads = cache_heads(layers)
        self.kv_cache_spec = KvCacheSpec(groups, heads.num_kv_heads, heads.head_dim, torch.float32)
        self.attention = TorchPagedAttention(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            windows={number: group.sliding_window for number, group in enumerate(groups)},
        )
        self._paged = PagedModule(module, [(layer, self.attention.layer(layer.shape)) for layer in layers], groups)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Mapping[int, PagedMetadata],
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden], normed."""
        assert given is None, "see embedding_size"
        return self._paged.forward(token_ids, positions, caches, metadata)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [N, hidden] unchanged: `forward` has normed them."""
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32, computed by the model's code from its last hidden states."""
        return self._paged.logits(hidden)

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] of the largest logits, and these logits [N]."""
        return argmax(self.logits(hidden))
