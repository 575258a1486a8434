"""The llama family: Llama, Mistral (sliding window), Qwen2 (bias on q, k, v), Qwen3 (norms of q, k), Phi-3 (partial rotation).

What a member has beyond the others is seen in its weights: a bias or a norm that is there is used. Products that share their
input are fused at load. Residuals are added in place: `hidden` is the residual stream.
"""

from typing import Any

import torch

from tetrad.worker_svc.attention.torch_paged import TorchPagedAttention
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.layers.attention import SelfAttention
from tetrad.worker_svc.layers.linear import Linear, LinearFactory
from tetrad.worker_svc.layers.mlp import GatedMlp
from tetrad.worker_svc.layers.norm import RmsNorm
from tetrad.worker_svc.layers.rotary import interleave_heads, rotary_of
from tetrad.worker_svc.model_facts.config import ModelConfig


class DecoderLayer:
    """Attention and MLP, each behind its norm."""

    def __init__(self, attention: SelfAttention, mlp: GatedMlp, input_norm: RmsNorm, mlp_norm: RmsNorm) -> None:
        self._attention, self._mlp = attention, mlp
        self._input_norm, self._mlp_norm = input_norm, mlp_norm

    def add_to(self, hidden: torch.Tensor, turns: torch.Tensor, cache: torch.Tensor, metadata: Any) -> None:
        """Add this layer's part to the residual stream [T, hidden], in place."""
        hidden.add_(self._attention(self._input_norm(hidden), turns, cache, metadata))
        hidden.add_(self._mlp(self._mlp_norm(hidden)))


class LlamaModel:
    """A decoder of the llama family; see registry.Model."""

    def __init__(self, config: ModelConfig, weights: WeightLoader, make_linear: LinearFactory) -> None:
        self.config = config
        self.kv_cache_spec = KvCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, torch.float32)
        self.attention = TorchPagedAttention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            sliding_window=config.sliding_window,
        )
        self._rotary = rotary_of(config.rotary_dim, config.rope_theta, config.rope_scaling)
        read = _LayerReader(config, weights, make_linear, self.attention)
        self._embedding = weights.get("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        self._layers = [read.layer(f"model.layers.{index}") for index in range(config.num_layers)]
        self._norm = read.norm("model.norm", config.hidden_size)
        self._lm_head = self._load_lm_head(weights, make_linear)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor], metadata: Any
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the last layer."""
        hidden = self._embedding[token_ids]
        turns = self._rotary.turns(positions)
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.add_to(hidden, turns, cache, metadata)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32."""
        return self._lm_head(self._norm(hidden)).float()

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] of the largest logits, and those [N]."""
        return argmax(self.logits(hidden))

    def _load_lm_head(self, weights: WeightLoader, make_linear: LinearFactory) -> Linear:
        if self.config.tie_word_embeddings or not weights.has("lm_head.weight"):
            return make_linear(self._embedding, None)
        return make_linear(weights.get("lm_head.weight", tuple(self._embedding.shape)), None)


class _LayerReader:
    """Reads one layer's weights at a time, so that no more than a layer is held twice while packing."""

    def __init__(
        self, config: ModelConfig, weights: WeightLoader, make_linear: LinearFactory, backend: TorchPagedAttention
    ) -> None:
        self._config, self._weights, self._make_linear, self._backend = config, weights, make_linear, backend

    def layer(self, prefix: str) -> DecoderLayer:
        """Return the layer whose weights' names begin with `prefix`."""
        hidden = self._config.hidden_size
        return DecoderLayer(
            attention=self._attention(f"{prefix}.self_attn"),
            mlp=self._mlp(f"{prefix}.mlp"),
            input_norm=self.norm(f"{prefix}.input_layernorm", hidden),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm", hidden),
        )

    def norm(self, name: str, size: int) -> RmsNorm:
        """Return a norm over `size` values."""
        return RmsNorm(self._weights.get(f"{name}.weight", (size,)), self._config.rms_norm_eps)

    def _attention(self, prefix: str) -> SelfAttention:
        config, dim = self._config, self._config.head_dim
        sizes = {"q_proj": config.num_heads * dim, "k_proj": config.num_kv_heads * dim, "v_proj": config.num_kv_heads * dim}
        return SelfAttention(
            qkv=self._fused(prefix, sizes, config.hidden_size, rotated=("q_proj", "k_proj")),
            output=self._fused(prefix, {"o_proj": config.hidden_size}, config.num_heads * dim),
            backend=self._backend,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=dim,
            query_key_norms=self._query_key_norms(prefix),
        )

    def _query_key_norms(self, prefix: str) -> tuple[RmsNorm, RmsNorm] | None:
        if not self._weights.has(f"{prefix}.q_norm.weight"):
            return None
        dim, eps = self._config.head_dim, self._config.rms_norm_eps
        query, key = (self._interleaved(self._weights.get(f"{prefix}.{n}_norm.weight", (dim,))) for n in "qk")
        return RmsNorm(query, eps), RmsNorm(key, eps)

    def _mlp(self, prefix: str) -> GatedMlp:
        config = self._config
        gate_up = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        return GatedMlp(
            gate_up=self._fused(prefix, gate_up, config.hidden_size),
            down=self._fused(prefix, {"down_proj": config.hidden_size}, config.intermediate_size),
        )

    def _fused(self, prefix: str, sizes: dict[str, int], in_features: int, rotated: tuple[str, ...] = ()) -> Linear:
        """Return the product of several weights over one input, their outputs side by side in the order of `sizes`."""
        weights, biases = [], []
        for name, size in sizes.items():
            parts = [self._weights.get(f"{prefix}.{name}.weight", (size, in_features))]
            if self._weights.has(f"{prefix}.{name}.bias"):
                parts.append(self._weights.get(f"{prefix}.{name}.bias", (size,)))
            if name in rotated:
                parts = [self._interleaved(part) for part in parts]
            weights.append(parts[0])
            biases.append(parts[1] if len(parts) > 1 else None)
        if all(bias is None for bias in biases):
            return self._make_linear(torch.cat(weights), None)
        filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
        return self._make_linear(torch.cat(weights), torch.cat(filled))

    def _interleaved(self, weight: torch.Tensor) -> torch.Tensor:
        return interleave_heads(weight, self._config.head_dim, self._config.rotary_dim)
