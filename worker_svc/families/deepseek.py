"""DeepSeek V2 and V3, and models of the same structure: latent attention, dense first layers, grouped and shared experts."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import MLP, decoder
from tetrad.worker_svc.families.experts import with_deepseek_experts
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import Latent, ModelConfig

_V3_SCALE, _FLASH_SCALE = 2.5, 1.8
_ATTENTION = frozenset({"q_a_proj", "kv_a_proj_with_mqa", "o_proj"})
"""The matrices that have a bias if the config sets attention_bias."""
_ROUTERS = {"greedy": "softmax", "group_limited_greedy": "grouped_softmax"}


def deepseek_v2(values: Values) -> ModelConfig:
    """Describe DeepSeek V2 and V2 Lite; they ignore norm_topk_prob: the experts' weights are never divided by their sum."""
    router = values.choose("topk_method", known=_ROUTERS, default="greedy")
    mlp_biases = MLP if values.get("mlp_bias") else frozenset[str]()
    return with_deepseek_experts(_latent(values, mlp_biases), values, router=router, is_renormalized=False)


def deepseek_v3(values: Values) -> ModelConfig:
    """Describe DeepSeek V3, R1 and Kimi K2."""
    return with_deepseek_experts(_latent(values), values, _V3_SCALE, router="grouped_sigmoid")


def glm4_moe_lite(values: Values) -> ModelConfig:
    """Describe GLM-4.7 Flash: DeepSeek V3 with a list of the layers that have experts, by default all but the first."""
    config = with_deepseek_experts(_latent(values), values, _FLASH_SCALE, router="grouped_sigmoid")
    kinds = values.get("mlp_layer_types", default=["dense"] + ["sparse"] * (config.num_layers - 1))
    if len(kinds) != config.num_layers:
        raise ModelError(f"The model's config has mlp_layer_types for {len(kinds)} of {config.num_layers} layers.")
    layers = [
        layer if kind == "sparse" else replace(layer, experts=None) for layer, kind in zip(config.layers, kinds, strict=True)
    ]
    return replace(config, layers=tuple(layers))


def _latent(values: Values, mlp_biases: frozenset[str] = frozenset()) -> ModelConfig:
    if not values.get("rope_interleave", default=True):
        raise ModelError("The model's config has rope_interleave false, which is not supported.")
    values.ignore("head_dim", "num_key_value_heads")
    latent = Latent(
        query_rank=int(values.get("q_lora_rank", default=0)),
        rank=int(values.need("kv_lora_rank")),
        plain_dim=int(values.need("qk_nope_head_dim")),
        rotary_dim=int(values.need("qk_rope_head_dim")),
        value_dim=int(values.need("v_head_dim")),
    )
    biases = mlp_biases | (_ATTENTION if values.get("attention_bias") else frozenset())
    config = decoder(values, head_dim=latent.rotary_dim, biases=biases)
    [rope] = config.ropes
    scale = (latent.plain_dim + latent.rotary_dim) ** -0.5 * _gain(rope.scaling if rope else None) ** 2
    return replace(config, num_kv_heads=1, head_dim=latent.rank + latent.rotary_dim, attention_scale=scale, latent=latent)


def _gain(scaling: Mapping[str, Any] | None) -> float:
    """Return YaRN's factor of queries and of keys; DeepSeek applies it in the scale of attention."""
    if not scaling or not scaling.get("mscale_all_dim"):
        return 1.0
    factor = float(scaling["factor"])
    return 0.1 * float(scaling["mscale_all_dim"]) * math.log(factor) + 1 if factor > 1 else 1.0
