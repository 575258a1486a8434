"""Mixtures of experts: Mixtral, OLMoE, Granite MoE, gpt-oss, GLM-4.5."""

from dataclasses import replace
from typing import Any

from tetrad.worker_svc.families.decoder import QKV, decoder
from tetrad.worker_svc.families.llama import granite
from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import Experts, ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored

_GPT_OSS_WINDOW = 128
_GPT_OSS_ROPE = {
    "theta": 150_000.0,
    "scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}
"""The rotary embedding of a config without values of it."""
_PARTS = ("gate_proj", "up_proj", "down_proj")


def mixtral(values: Values) -> ModelConfig:
    """Describe Mixtral: eight experts, two of them chosen for each token."""
    config = decoder(values, default_kind=SLIDING, rope={"theta": 1e6})
    names = {"mlp.router": Stored("block_sparse_moe.gate")}
    for part, stored in zip(_PARTS, ("w1", "w3", "w2"), strict=True):
        names[f"mlp.experts.{{expert}}.{part}"] = Stored(f"block_sparse_moe.experts.{{expert}}.{stored}")
    return _mixture(config, values, names)


def olmoe(values: Values) -> ModelConfig:
    """Describe OLMoE: norms of queries and keys over all heads together."""
    is_renormalized = bool(values.get("norm_topk_prob", default=False))
    config = decoder(values, head_norms="whole")
    return _mixture(config, values, {"mlp.router": Stored("mlp.gate")}, is_renormalized=is_renormalized)


def granite_moe(values: Values) -> ModelConfig:
    """Describe Granite 3 MoE: one tensor for all experts; the experts' weights are a softmax over the chosen ones."""
    return granite_experts(granite(values), values)


def granite_experts(config: ModelConfig, values: Values, **changes: Any) -> ModelConfig:
    """Return the config with Granite's experts; `changes` are attributes of the experts."""
    size = config.layers[0].intermediate_size
    inside, outside = "block_sparse_moe.input_linear", "block_sparse_moe.output_linear"
    names = {
        "mlp.router": Stored("block_sparse_moe.router.layer"),
        "mlp.experts.{expert}.gate_proj": Stored(inside, is_stacked=True, rows=Rows(1, 2 * size, 0, size)),
        "mlp.experts.{expert}.up_proj": Stored(inside, is_stacked=True, rows=Rows(1, 2 * size, size, 2 * size)),
        "mlp.experts.{expert}.down_proj": Stored(outside, is_stacked=True),
    }
    return _mixture(config, values, names, router="softmax_chosen", is_renormalized=False, **changes)


def gpt_oss(values: Values) -> ModelConfig:
    """Describe gpt-oss: attention sinks, a window in every other layer, biases everywhere, alternating rows of gate and up."""
    kinds = values.layer_kinds([FULL if index % 2 else SLIDING for index in range(values.num_layers())])
    config = decoder(
        values,
        kinds=kinds,
        default_window=_GPT_OSS_WINDOW,
        rope=_GPT_OSS_ROPE,
        has_sinks=True,
        biases=frozenset({"router", *_PARTS}) | (QKV | {"o_proj"} if values.get("attention_bias", default=True) else set()),
    )
    size = config.layers[0].intermediate_size
    rows = {"gate_proj": Rows(size, 2, 0, 1), "up_proj": Rows(size, 2, 1, 2), "down_proj": None}
    names = {}
    for part, its_rows in rows.items():
        # Files are in floats, in MXFP4, or have separate tensors for each expert.
        alone = Stored(f"mlp.experts.{{expert}}.{part}")
        packed = Stored(f"mlp.experts.{'gate_up_proj' if its_rows else part}", is_stacked=True, rows=its_rows, otherwise=alone)
        in_floats = replace(packed, is_transposed=True, weight="", bias="_bias")
        names[f"mlp.experts.{{expert}}.{part}"] = replace(in_floats, otherwise=packed)
    clamp = float(values.get("swiglu_limit", default=7.0))
    return _mixture(config, values, names, router="softmax_chosen", is_renormalized=False, clamp=clamp, has_biases=True)


def glm4_moe(values: Values) -> ModelConfig:
    """Describe GLM-4.5: rotary embeddings on half of a head, dense first layers, DeepSeek V3's router."""
    head_norms = "head" if values.get("use_qk_norm") else "none"
    config = decoder(values, rope={"share": 0.5}, head_norms=head_norms)
    return with_deepseek_experts(replace(config, biases=config.biases & QKV), values, router="grouped_sigmoid")


def with_deepseek_experts(config: ModelConfig, values: Values, default_scale: float = 1.0, **changes: Any) -> ModelConfig:
    """Return the config with experts as in DeepSeek's configs: dense first layers, some shared experts.

    Args:
        config: the config without experts.
        values: the values of the config.
        default_scale: factor of the experts' weights, if the config does not say.
        changes: attributes of the experts.
    """
    size = int(values.need("moe_intermediate_size"))
    experts = Experts(
        num_experts=int(values.need("n_routed_experts", "num_local_experts")),
        num_chosen=int(values.need("num_experts_per_tok")),
        intermediate_size=size,
        is_renormalized=bool(values.get("norm_topk_prob", default=True)),
        scale=float(values.get("routed_scaling_factor", default=default_scale)),
        num_groups=int(values.get("n_group", default=1)),
        num_chosen_groups=int(values.get("topk_group", default=1)),
        shared_size=size * int(values.get("n_shared_experts", default=0)),
    )
    num_dense = int(values.get("first_k_dense_replace", default=0))
    experts = replace(experts, **changes)
    scores = "sigmoid" if experts.router == "grouped_sigmoid" else "softmax"
    values.choose("scoring_func", known={scores: scores}, default=scores)
    layers = [layer if index < num_dense else replace(layer, experts=experts) for index, layer in enumerate(config.layers)]
    names = {
        "mlp.router": Stored("mlp.gate"),
        "mlp.router_correction": Stored("mlp.gate.e_score_correction_bias"),
    } | {f"mlp.shared_expert.{part}": Stored(f"mlp.shared_experts.{part}") for part in _PARTS}
    # Tensors of layers after the last one belong to the MTP head, a drafter.
    unused = tuple(f"model.layers.{config.num_layers + index}." for index in range(values.num_mtp_layers()))
    tensors = replace(config.tensors, in_layer=dict(config.tensors.in_layer) | names, unused_layers=unused)
    return replace(config, layers=tuple(layers), tensors=tensors)


def _mixture(config: ModelConfig, values: Values, names: dict[str, Stored], **changes: Any) -> ModelConfig:
    """Return the config with every MLP replaced by experts."""
    facts: dict[str, Any] = {
        "num_experts": int(values.need("num_local_experts", "num_experts")),
        "num_chosen": int(values.need("num_experts_per_tok")),
        "intermediate_size": config.layers[0].intermediate_size,
    }
    experts = Experts(**facts | changes)
    layers = tuple(replace(layer, experts=experts) for layer in config.layers)
    return replace(config, layers=layers, tensors=replace(config.tensors, in_layer=names))
