"""Reads the attention of a decoder layer from a model's weights."""

from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import AttentionBackend, AttentionShape, M
from tetrad.worker_svc.layers.attention import (
    Attention,
    HeadChange,
    NormHeads,
    NormWhole,
    Rotate,
    ScaleQueries,
    SelfAttention,
)
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.latent_attention import LATENT_NORM_EPS, LatentAttention, NormedLinear, Queries
from tetrad.worker_svc.layers.linear import Bounded
from tetrad.worker_svc.layers.norm import LayerNorm, Norm, RmsNorm, UnitNorm, unchanged
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.rotary import interleave_heads
from tetrad.worker_svc.layers.summed import SummedRmsNorm
from tetrad.worker_svc.model_facts.config import Latent, LayerConfig, ModelConfig


class AttentionReader(Generic[M]):
    """Reads one layer's attention at a time.

    Args:
        config: the model's description.
        parameters: the model's weights.
        attention: creates the attention of each layer.
        ranks: the ranks that share the heads; None: this rank has all heads.
        input_size: size of the input of attention; None: the hidden size.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attention: AttentionBackend[M],
        ranks: Collectives | None = None,
        input_size: int | None = None,
    ) -> None:
        self._config, self._parameters, self._backend, self._ranks = config, parameters, attention, ranks
        self._input_size = input_size or config.hidden_size
        self._ropes = [rope for rope in config.ropes if rope]

    def attention(self, prefix: str, layer: LayerConfig) -> Attention[M]:
        """Return a layer's attention."""
        return self._latent(self._config.latent, prefix, layer) if self._config.latent else self._plain(prefix, layer)

    def _plain(self, prefix: str, layer: LayerConfig) -> SelfAttention[M]:
        config, parameters, dim = self._config, self._parameters, self._config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        qkv = parameters.linear(
            [(f"{prefix}.{name}", size) for name, size in sizes.items()],
            self._input_size,
            rotated=(layer.rope is not None, layer.rope is not None, False),
            head_dim=dim,
            rotary_dim=layer.rope.dim if layer.rope else None,
        )
        return SelfAttention(
            qkv=Bounded(qkv, config.qkv_bound) if config.qkv_bound else qkv,
            output=parameters.linear([(f"{prefix}.o_proj", config.hidden_size)], queries),
            attention=self._backend.layer(self._shape(prefix, layer)),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=dim,
            changes=self._head_changes(prefix, layer),
            gate=parameters.linear([(f"{prefix}.output_gate_proj", queries)], self._input_size)
            if config.has_output_gate
            else None,
        )

    def _latent(self, latent: Latent, prefix: str, layer: LayerConfig) -> LatentAttention[M]:
        config, parameters, heads = self._config, self._parameters, self._config.num_heads
        query_size = heads * (latent.plain_dim + latent.rotary_dim)
        first = (f"{prefix}.q_a_proj", latent.query_rank) if latent.query_rank else (f"{prefix}.q_proj", query_size)
        inputs = [first, (f"{prefix}.kv_a_proj_with_mqa", latent.rank + latent.rotary_dim)]
        expand = parameters.embedding(f"{prefix}.kv_b_proj.weight", heads * (latent.plain_dim + latent.value_dim), latent.rank)
        return LatentAttention(
            latent,
            inputs=parameters.linear(inputs, config.hidden_size),
            queries=self._latent_queries(latent, prefix, query_size),
            norm=RmsNorm(parameters.vector(f"{prefix}.kv_a_layernorm.weight", latent.rank), LATENT_NORM_EPS),
            expand=expand.view(heads, -1, latent.rank),
            output=parameters.linear([(f"{prefix}.o_proj", config.hidden_size)], heads * latent.value_dim),
            attention=self._backend.layer(self._shape(prefix, layer)),
            rope=self._ropes.index(layer.rope) if layer.rope else 0,
        )

    def _latent_queries(self, latent: Latent, prefix: str, query_size: int) -> Queries:
        if not latent.query_rank:
            return unchanged
        norm = RmsNorm(self._parameters.vector(f"{prefix}.q_a_layernorm.weight", latent.query_rank), LATENT_NORM_EPS)
        return NormedLinear(norm, self._parameters.linear([(f"{prefix}.q_b_proj", query_size)], latent.query_rank))

    def _shape(self, prefix: str, layer: LayerConfig) -> AttentionShape:
        config = self._config
        sinks = self._parameters.vector(f"{prefix}.sinks", config.num_heads).float() if config.has_sinks else None
        slopes = self._parameters.constants(config.slopes) if config.slopes else None
        scale, softcap = config.attention_scale, config.attention_softcap
        return AttentionShape(scale, layer.window, softcap, sinks, chunk=layer.chunk, slopes=slopes)

    def _head_changes(self, prefix: str, layer: LayerConfig) -> list[HeadChange]:
        num_heads = self._config.num_heads
        has_norms = self._config.head_norms != "none" and (self._config.head_norms != "unit" or layer.rope is not None)
        norms: list[HeadChange] = [self._head_norms(prefix, layer)] if has_norms else []
        turns: list[HeadChange] = [Rotate(self._ropes.index(layer.rope))] if layer.rope else []
        scaling: list[HeadChange] = [ScaleQueries(num_heads, layer.query_scaling)] if layer.query_scaling else []
        return [*turns, *norms, *scaling] if self._config.are_heads_normed_last else [*norms, *turns, *scaling]

    def _head_norms(self, prefix: str, layer: LayerConfig) -> HeadChange:
        config = self._config
        if config.head_norms == "unit":
            norm = UnitNorm(config.head_dim, config.norm_eps)
            return NormHeads(config.num_heads, norm, norm)
        weights = [
            self._head_weight(f"{prefix}.{name}.weight", 1 if config.head_norms == "head" else heads, layer)
            for name, heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads))
        ]
        if config.head_norms == "each":
            queries, keys = (LayerNorm(weight.view(-1, config.head_dim), None, config.norm_eps) for weight in weights)
            return NormHeads(config.num_heads, queries, keys)
        make = NormWhole if config.head_norms == "whole" else NormHeads
        query_norm, key_norm = (self._rms_norm(weight) for weight in weights)
        return make(config.num_heads, query_norm, key_norm)

    def _rms_norm(self, weight: torch.Tensor) -> Norm:
        config = self._config
        if self._ranks is None or config.head_norms != "whole":
            return RmsNorm(weight, config.norm_eps)
        return SummedRmsNorm(weight, config.norm_eps, self._ranks)

    def _head_weight(self, name: str, num_heads: int, layer: LayerConfig) -> torch.Tensor:
        dim = self._config.head_dim
        weight = self._parameters.vector(name, num_heads * dim)
        return interleave_heads(weight, dim, layer.rope.dim) if layer.rope else weight
