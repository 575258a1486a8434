"""GGUF state configs: converts the metadata of models that keep states to values of config.json.

Used by the table in gguf_architectures.py, as gguf_configs.py. The states are those of Mamba, gated delta nets and short
convolutions; most of these models also have layers with attention.
"""

from typing import Any

from tetrad.worker_svc.checkpoint.gguf_configs import experts, granite, partial_rotation, qwen3_moe
from tetrad.worker_svc.checkpoint.gguf_facts import Facts


def lfm2(facts: Facts) -> dict[str, Any]:
    """Return the values of LFM2; layers without KV heads are convolutions."""
    return {
        "conv_L_cache": facts("shortconv.l_cache"),
        "conv_bias": facts.has_in_layers("shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": _layer_types(facts, "full_attention", "conv"),
    }


def lfm2_moe(facts: Facts) -> dict[str, Any]:
    """Return the values of LFM2 MoE."""
    return {
        **lfm2(facts),
        **experts(facts),
        "num_local_experts": None,
        "num_dense_layers": facts("leading_dense_block_count"),
    }


def mamba(facts: Facts) -> dict[str, Any]:
    """Return the values of Mamba, and of Falcon Mamba, which has norms of time steps, B and C."""
    own = {"architectures": ["FalconMambaForCausalLM"]} if facts("ssm.dt_b_c_rms") else {}
    return {
        **own,
        "intermediate_size": facts("ssm.inner_size"),
        "state_size": facts("ssm.state_size"),
        "time_step_rank": facts("ssm.time_step_rank"),
        "conv_kernel": facts("ssm.conv_kernel"),
        "use_conv_bias": facts.has_in_layers("ssm_conv1d.bias"),
        "use_bias": facts.has_in_layers("ssm_in.bias"),
        "layer_norm_epsilon": facts("attention.layer_norm_rms_epsilon"),
    }


def jamba(facts: Facts) -> dict[str, Any]:
    """Return the values of Jamba; layers without KV heads are Mamba, and layers with experts have a router."""
    count, layers = facts("expert_count") or 0, range(facts.num_layers)
    return {
        "mamba_expand": facts("ssm.inner_size") // facts("embedding_length"),
        "mamba_d_state": facts("ssm.state_size"),
        "mamba_dt_rank": facts("ssm.time_step_rank"),
        "mamba_d_conv": facts("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has_in_layers("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has_in_layers("ssm_in.bias"),
        "layer_types": _layer_types(facts, "attention", "mamba"),
        "layers_num_experts": [count if facts.has(f"blk.{layer}.ffn_gate_inp.weight") else 1 for layer in layers],
        "num_experts": count,
        "num_experts_per_tok": facts("expert_used_count"),
    }


def mamba2(facts: Facts) -> dict[str, Any]:
    """Return the values of Mamba2."""
    heads = facts("ssm.time_step_rank")
    return {
        "num_heads": heads,
        "head_dim": facts("ssm.inner_size") // heads,
        "state_size": facts("ssm.state_size"),
        "n_groups": facts("ssm.group_count"),
        "conv_kernel": facts("ssm.conv_kernel"),
        "use_conv_bias": facts.has_in_layers("ssm_conv1d.bias"),
        "use_bias": facts.has_in_layers("ssm_in.bias"),
        "layer_norm_epsilon": facts("attention.layer_norm_rms_epsilon"),
    }


def _mamba_beside_attention(facts: Facts) -> dict[str, Any]:
    heads, size = facts("ssm.time_step_rank"), facts("ssm.inner_size")
    return {
        "mamba_d_ssm": size,
        "mamba_n_heads": heads,
        "mamba_d_head": size // heads,
        "mamba_d_state": facts("ssm.state_size"),
        "mamba_n_groups": facts("ssm.group_count"),
        "mamba_d_conv": facts("ssm.conv_kernel"),
        "mamba_conv_bias": facts.has_in_layers("ssm_conv1d.bias"),
        "mamba_proj_bias": facts.has_in_layers("ssm_in.bias"),
    }


def granite_hybrid(facts: Facts) -> dict[str, Any]:
    """Return the values of Granite 4; layers without KV heads are Mamba2. Bamba, with rotation, has the same GGUF name."""
    if facts("rope.scaling.finetuned"):
        raise facts.refuse("with a rotary embedding")
    shared = facts("expert_shared_feed_forward_length") or facts("feed_forward_length")
    return {
        **granite(facts),
        **_mamba_beside_attention(facts),
        **experts(facts),
        "num_local_experts": facts("expert_count") or 0,
        "num_experts": None,
        "shared_intermediate_size": shared,
        "layer_types": _layer_types(facts, "attention", "mamba"),
    }


def falcon_h1(facts: Facts) -> dict[str, Any]:
    """Return the values of Falcon-H1. The converter has multiplied the weights by the model's multipliers."""
    if facts.has_in_layers("ssm_norm.weight"):
        raise facts.refuse("with a norm in its Mamba2 layers, whose place the file does not say,")
    return {**_mamba_beside_attention(facts), "projectors_bias": facts.has_in_layers("ssm_out.bias")}


def _gated_delta(facts: Facts) -> dict[str, Any]:
    heads = facts("ssm.time_step_rank")
    return {
        "linear_num_key_heads": facts("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": facts("ssm.state_size"),
        "linear_value_head_dim": facts("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": facts("ssm.conv_kernel"),
        "layer_types": [
            "linear_attention" if facts.has(f"blk.{layer}.attn_qkv.weight") else "full_attention"
            for layer in range(facts.num_layers)
        ],
        **partial_rotation(facts),
    }


def qwen3_next(facts: Facts) -> dict[str, Any]:
    """Return the values of Qwen3-Next."""
    return _gated_delta(facts) | qwen3_moe(facts)


def qwen3_5(facts: Facts) -> dict[str, Any]:
    """Return the values of Qwen3.5. Value heads that share a key head are not neighbours, unlike in config.json's models."""
    return _gated_delta(facts) | {"linear_keys_in_turns": True}


def qwen3_5_moe(facts: Facts) -> dict[str, Any]:
    """Return the values of Qwen3.5 MoE."""
    return qwen3_next(facts) | {"linear_keys_in_turns": True}


def _layer_types(facts: Facts, with_keys: str, without: str) -> list[str]:
    counts = facts("attention.head_count_kv")
    if not isinstance(counts, list) or len(counts) != facts.num_layers:
        raise facts.refuse("without attention.head_count_kv of each layer")
    return [with_keys if count else without for count in counts]
