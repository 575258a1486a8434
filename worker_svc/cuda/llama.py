"""The llama family on the device's kernels: the computation of models/llama.py, each layer in eight launches.

`x` is what the next product reads, normed; `residual` is the stream that layers add to, which happens in the norm behind them.
"""

from dataclasses import dataclass

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.cuda.attention import AttentionParts, PagedAttention
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.cuda.output_layer import output_layer
from tetrad.worker_svc.kernels.activation import silu_mul
from tetrad.worker_svc.kernels.rms_norm import add_rms_norm, rms_norm
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.linear import Linear, PlainLinear
from tetrad.worker_svc.layers.rotary import interleave_heads, rotary_of
from tetrad.worker_svc.model_facts.config import ModelConfig


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # of queries and keys
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class DeviceLlama:
    """A decoder of the llama family on a device; stateless between steps.

    Args:
        config: of the model.
        weights: says which it has.
        linears: brings them to the device.
        kv_cache_dtype: of keys and values.
        offload: has the layers that are not on the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightLoader,
        linears: DeviceLinears,
        kv_cache_dtype: torch.dtype,
        offload: WeightOffload,
    ) -> None:
        self.config, self.offload = config, offload
        self.kv_cache_spec = KvCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, kv_cache_dtype)
        self._embedding = linears.embedding("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.dtype = self._embedding.dtype
        self._layers: list[_Layer] = []
        for index in range(config.num_layers):
            first = len(linears.tensors)
            self._layers.append(_read_layer(config, weights, linears, f"model.layers.{index}"))
            offload.take(self._layers[-1], linears.tensors[first:])
        self._norm = linears.vector("model.norm.weight", config.hidden_size)
        is_tied = config.tie_word_embeddings or not weights.has("lm_head.weight")
        head = [("lm_head", config.vocab_size)]
        self._head = output_layer(PlainLinear(self._embedding, None) if is_tied else linears.linear(head, config.hidden_size))
        rotary = rotary_of(config.rotary_dim, config.rope_theta, config.rope_scaling)
        self._rotary = rotary.to(self._embedding.device)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_slots: torch.Tensor,
        caches: list[torch.Tensor],
        attention: PagedAttention,
        parts: AttentionParts,
    ) -> torch.Tensor:
        """Return the normed hidden states [T, hidden] behind the last layer; writes the caches.

        Args:
            token_ids: [T] int32.
            positions: [T] int32.
            kv_slots: [T] int64, see gather_inputs.
            caches: a layer's [num_blocks, block_size, 2, num_kv_heads, head_dim] each.
            attention: over them.
            parts: of the step.
        """
        config = self.config
        cos_sin = self._rotary.cos_sin(positions)
        residual = self._embedding.index_select(0, token_ids)
        x = rms_norm(residual, self._layers[0].input_norm, config.rms_norm_eps)
        following = [layer.input_norm for layer in self._layers[1:]] + [self._norm]
        for layer, cache, next_norm in zip(self.offload.each(self._layers), caches, following, strict=True):
            qkv = layer.qkv(x)
            rotate_and_cache(
                qkv, cos_sin, kv_slots, cache, config.num_heads, head_norms=layer.head_norms, eps=config.rms_norm_eps
            )
            query = qkv[:, : config.num_heads * config.head_dim].view(len(qkv), config.num_heads, config.head_dim)
            attended = attention.attend(query, cache, parts)
            x = add_rms_norm(layer.output(attended), residual, layer.mlp_norm, config.rms_norm_eps)
            x = layer.down(silu_mul(layer.gate_up(x)))
            x = add_rms_norm(x, residual, next_norm, config.rms_norm_eps)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32 for hidden states [N, hidden]."""
        return self._head(hidden)


def _read_layer(config: ModelConfig, weights: WeightLoader, linears: DeviceLinears, prefix: str) -> _Layer:
    hidden, dim = config.hidden_size, config.head_dim
    query_size, key_size = config.num_heads * dim, config.num_kv_heads * dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    heads = [(f"{attention}.q_proj", query_size), (f"{attention}.k_proj", key_size), (f"{attention}.v_proj", key_size)]
    gates = [(f"{mlp}.gate_proj", config.intermediate_size), (f"{mlp}.up_proj", config.intermediate_size)]
    return _Layer(
        input_norm=linears.vector(f"{prefix}.input_layernorm.weight", hidden),
        qkv=linears.linear(heads, hidden, rotated=(True, True, False), head_dim=dim, rotary_dim=config.rotary_dim),
        head_norms=_head_norms(config, linears, attention) if weights.has(f"{attention}.q_norm.weight") else None,
        output=linears.linear([(f"{attention}.o_proj", hidden)], query_size),
        mlp_norm=linears.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=linears.linear(gates, hidden),
        down=linears.linear([(f"{mlp}.down_proj", hidden)], config.intermediate_size),
    )


def _head_norms(config: ModelConfig, linears: DeviceLinears, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
    query, key = (
        interleave_heads(linears.vector(f"{prefix}.{name}_norm.weight", config.head_dim), config.head_dim, config.rotary_dim)
        for name in "qk"
    )
    return query, key
