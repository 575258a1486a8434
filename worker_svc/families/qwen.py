"""Qwen: biases of queries, keys and values (2), norms of each head (3), optional windows from a certain layer on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tetrad.worker_svc.families.decoder import QKV, decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, WINDOW, Values
from tetrad.worker_svc.model_facts.config import Experts, ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored

_FULL_LAYERS = 28
"""Default of max_window_layers: the number of first layers with full attention."""


def qwen2(values: Values) -> ModelConfig:
    """Describe Qwen2 and 2.5."""
    return decoder(values, kinds=window_kinds(values), default_window=WINDOW, biases=QKV)


def qwen3(values: Values) -> ModelConfig:
    """Describe Qwen3."""
    return decoder(values, kinds=window_kinds(values), default_window=WINDOW, head_norms="head")


def qwen2_moe(values: Values) -> ModelConfig:
    """Describe Qwen1.5 and Qwen2 MoE: experts, and a shared expert with a gate."""
    biases = QKV if values.get("qkv_bias", default=True) else frozenset()
    config = decoder(values, kinds=window_kinds(values), default_window=WINDOW, biases=biases)
    return with_qwen_experts(config, values, **shared_expert(values))


def qwen3_moe(values: Values) -> ModelConfig:
    """Describe Qwen3 MoE."""
    return with_qwen_experts(decoder(values, kinds=window_kinds(values), default_window=WINDOW, head_norms="head"), values)


def with_qwen_experts(config: ModelConfig, values: Values, **changes: Any) -> ModelConfig:
    """Return the config with experts as in Qwen's configs; `changes` are attributes of the experts."""
    facts: dict[str, Any] = {
        "num_experts": int(values.need("num_experts", "num_local_experts")),
        "num_chosen": int(values.need("num_experts_per_tok")),
        "intermediate_size": int(values.need("moe_intermediate_size")),
        "is_renormalized": bool(values.get("norm_topk_prob", default=False)),
    }
    experts = Experts(**facts | changes)
    step, dense = int(values.get("decoder_sparse_step", default=1)), set(values.get("mlp_only_layers", default=()))
    layers = [
        layer if index in dense or (index + 1) % step else replace(layer, experts=experts)
        for index, layer in enumerate(config.layers)
    ]
    in_layer = dict(config.tensors.in_layer) | {"mlp.router": Stored("mlp.gate")}
    return replace(config, layers=tuple(layers), tensors=replace(config.tensors, in_layer=in_layer))


def shared_expert(values: Values) -> dict[str, int | bool]:
    """Return the attributes of the shared expert, an MLP with a gate; size 0 if the config gives none."""
    size = int(values.get("shared_expert_intermediate_size", default=0))
    return {"shared_size": size, "has_shared_gate": size > 0}


def window_kinds(values: Values) -> Sequence[str]:
    """Return each layer's kind of attention."""
    num_layers = values.num_layers()
    if not values.get("use_sliding_window", default=False):
        return [FULL] * num_layers
    num_full = int(values.get("max_window_layers", default=_FULL_LAYERS))
    return values.layer_kinds([FULL if index < num_full else SLIDING for index in range(num_layers)])
