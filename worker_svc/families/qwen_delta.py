"""Qwen3-Next and 3.5: three gated delta nets, then gated attention with a quarter of a head rotated; norms times 1 + w.

The files have a layer for multi-token prediction under "mtp."; here it is the layer after the last one.
"""

from collections.abc import Mapping
from dataclasses import replace

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.qwen import shared_expert, with_qwen_experts
from tetrad.worker_svc.families.states import (
    attention_layers,
    check_silu,
    fused_parts,
    mixer_names,
    parts_by_heads,
    with_states,
)
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import ModelConfig, Mtp
from tetrad.worker_svc.model_facts.states import GatedDeltaRule
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored

_EVERY_FOURTH = 4
_MTP = {
    "eh_proj": Stored("fc"),
    "enorm": Stored("pre_fc_norm_embedding", plus=1.0),
    "hnorm": Stored("pre_fc_norm_hidden", plus=1.0),
    "shared_head.norm": Stored("norm", plus=1.0),
}
_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")


def qwen3_next(values: Values) -> ModelConfig:
    """Describe Qwen3-Next: a mixture of experts; fused matrices contain the parts of one key head after another."""
    state = _state(values)
    shared = state.num_value_heads // state.num_key_heads
    width = shared * state.value_dim
    parts = {"in_query_proj": state.key_dim, "in_key_proj": state.key_dim, "in_value_proj": width, "in_gate_proj": width}
    names = parts_by_heads("linear_attn.in_proj_qkvz", parts, state.num_key_heads)
    names |= parts_by_heads("linear_attn.in_proj_ba", {"in_beta_proj": shared, "in_decay_proj": shared}, state.num_key_heads)
    is_renormalized = bool(values.get("norm_topk_prob", default=True))
    config = _described(values, state, names)
    return with_qwen_experts(config, values, is_renormalized=is_renormalized, **shared_expert(values))


def qwen3_5(values: Values) -> ModelConfig:
    """Describe Qwen3.5: an MLP in each layer."""
    state = _state(values)
    return _described(values, state, _separate(state))


def qwen3_5_moe(values: Values) -> ModelConfig:
    """Describe Qwen3.5 MoE; published files have all experts of a layer in one tensor."""
    state = _state(values)
    config = _described(values, state, _separate(state))
    config = with_qwen_experts(config, values, is_renormalized=True, **shared_expert(values))
    size = int(values.need("moe_intermediate_size"))
    inside = {part: Rows(1, 2 * size, *rows) for part, rows in (("gate", (0, size)), ("up", (size, 2 * size)))}
    stacked = {part: Stored("mlp.experts.gate_up_proj", is_stacked=True, rows=rows, weight="") for part, rows in inside.items()}
    stacked["down"] = Stored("mlp.experts.down_proj", is_stacked=True, weight="")
    names = {
        f"mlp.experts.{{expert}}.{part}_proj": Stored(f"mlp.experts.{{expert}}.{part}_proj", otherwise=stored)
        for part, stored in stacked.items()
    }
    return replace(config, tensors=replace(config.tensors, in_layer=dict(config.tensors.in_layer) | names))


def _described(values: Values, state: GatedDeltaRule, names: Mapping[str, Stored]) -> ModelConfig:
    interval = int(values.get("full_attention_interval", default=_EVERY_FOURTH))
    number = values.num_layers()
    # If every layer has experts, the config need not give the size of an MLP.
    config = decoder(values, kinds=[FULL] * number, rope={"share": 0.25}, head_norms="head", default_size=1)
    rows, dim = config.num_heads, config.head_dim
    gates = {
        "self_attn.q_proj": Stored("self_attn.q_proj", rows=Rows(rows, 2 * dim, 0, dim)),
        "self_attn.output_gate_proj": Stored("self_attn.q_proj", rows=Rows(rows, 2 * dim, dim, 2 * dim)),
    }
    in_layer = (
        mixer_names("linear_attn", state) | dict(names) | gates | {name: Stored(name, plus=1.0) for name in _NORMS} | _MTP
    )
    moved = [(f"model.layers.{number}.{stored.name}.", f"mtp.{stored.name}.") for stored in _MTP.values()]
    biases = config.biases | {"output_gate_proj"} if "q_proj" in config.biases else config.biases
    config = replace(config, has_output_gate=True, biases=biases)
    return with_states(
        config,
        state,
        attention_layers(values, [(index + 1) % interval == 0 for index in range(number)]),
        tensors=replace(
            config.tensors,
            in_layer=in_layer,
            in_model={"model.norm": Stored("model.norm", plus=1.0)},
            moved=(*moved, (f"model.layers.{number}.", "mtp.layers.0.")),
            unused_layers=("mtp.",),
        ),
        mtp=Mtp(hides_first=False, continues_normed=True),
    )


def _state(values: Values) -> GatedDeltaRule:
    check_silu(values, "hidden_act")
    return GatedDeltaRule(
        num_key_heads=int(values.get("linear_num_key_heads", default=16)),
        num_value_heads=int(values.get("linear_num_value_heads", default=32)),
        key_dim=int(values.get("linear_key_head_dim", default=128)),
        value_dim=int(values.get("linear_value_head_dim", default=128)),
        kernel=int(values.get("linear_conv_kernel_dim", default=4)),
        are_keys_in_turns=bool(values.get("linear_keys_in_turns")),
    )


def _separate(state: GatedDeltaRule) -> dict[str, Stored]:
    mixed = {name: state.parts[name] for name in ("in_query_proj", "in_key_proj", "in_value_proj")}
    alone = {"in_gate_proj": "in_proj_z", "in_beta_proj": "in_proj_b", "in_decay_proj": "in_proj_a"}
    return fused_parts("linear_attn.in_proj_qkv", mixed) | {
        f"mixer.{name}": Stored(f"linear_attn.{stored}") for name, stored in alone.items()
    }
