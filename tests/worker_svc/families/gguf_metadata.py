"""GGUF metadata of tiny models: the values beyond sizes that llama.cpp's converter writes, from transformers' config."""

import math
from collections.abc import Mapping
from typing import Any

Config = Any
"""A config of transformers."""


def nothing(config: Config) -> Mapping[str, Any]:
    return {}


def experts(config: Config) -> dict[str, Any]:
    size = getattr(config, "moe_intermediate_size", config.intermediate_size)
    return {
        "expert_count": getattr(config, "num_experts", None) or config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": size,
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", 0),
    }


def granite(config: Config) -> dict[str, Any]:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def gpt_oss(config: Config) -> dict[str, Any]:
    scaling = config.rope_parameters
    return experts(config) | {
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }


def turned(config: Config) -> dict[str, Any]:
    share = config.rope_parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    return {"rope.dimension_count": int(share * config.hidden_size) // config.num_attention_heads}


def gpt_neox(config: Config) -> dict[str, Any]:
    return turned(config) | {"use_parallel_residual": config.use_parallel_residual}


def mpt(config: Config) -> dict[str, Any]:
    attention = config.attn_config
    bounds = {"attention.clamp_kqv": attention.clip_qkv} if attention.clip_qkv is not None else {}
    return bounds | {
        "context_length": config.max_seq_len,
        "feed_forward_length": 4 * config.d_model,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.max_alibi_bias": float(attention.alibi_bias_max),
    }


def falcon(config: Config) -> dict[str, Any]:
    return {
        "context_length": 2048,
        "feed_forward_length": 4 * config.hidden_size,
        "attention.head_count_kv": config.num_kv_heads if config.new_decoder_architecture else 1,
    }


def deepseek_experts(config: Config) -> dict[str, Any]:
    return {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_weights_scale": float(config.routed_scaling_factor),
    }


def glm4_moe(config: Config) -> dict[str, Any]:
    return {
        **turned(config),
        **deepseek_experts(config),
        "expert_weights_norm": bool(config.norm_topk_prob),
    }


def deepseek2(config: Config) -> dict[str, Any]:
    scaling = config.rope_parameters
    values = {
        **old_deepseek2(config),
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
    }
    if scaling["rope_type"] == "yarn":
        values |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"],
        }
    return values


def old_deepseek2(config: Config) -> dict[str, Any]:
    is_v3 = config.model_type == "deepseek_v3"
    return {
        "attention.kv_lora_rank": config.kv_lora_rank,
        **({"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}),
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        **deepseek_experts(config),
        **({"expert_weights_norm": True, "expert_gating_func": 2} if is_v3 else {}),
    }


def llama4(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": config.intermediate_size_mlp,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
        "rope.dimension_count": config.head_dim,
    }


def windows(config: Config) -> dict[str, Any]:
    theta = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.freq_base": theta,
    }


def phi3_with_long_contexts(config: Config) -> dict[str, Any]:
    original = config.original_max_position_embeddings
    longer = config.max_position_embeddings / original
    return {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(longer) / math.log(original)),
    }


def ministral3(config: Config) -> dict[str, Any]:
    scaling = config.rope_parameters
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
        "rope.scaling.yarn_log_multiplier": scaling["mscale_all_dim"],
        "attention.temperature_scale": scaling["llama_4_scaling_beta"],
    }


def lfm2(config: Config) -> dict[str, Any]:
    size = int(2 * getattr(config, "block_ff_dim", config.intermediate_size) / 3)
    multiple = getattr(config, "block_multiple_of", 256)
    return {
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types
        ],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "shortconv.l_cache": config.conv_L_cache,
        "feed_forward_length": -(-size // multiple) * multiple,
    }


def ssm(config: Config, size: int) -> dict[str, Any]:
    def find(*names: str) -> Any:
        return next(getattr(config, name) for name in names if getattr(config, name, None) is not None)

    return {
        "ssm.conv_kernel": find("mamba_d_conv", "conv_kernel"),
        "ssm.state_size": find("mamba_d_state", "state_size"),
        "ssm.group_count": find("mamba_n_groups", "n_groups"),
        "ssm.inner_size": size,
        "ssm.time_step_rank": size // find("mamba_d_head", "head_dim"),
        "attention.layer_norm_rms_epsilon": find("rms_norm_eps", "layer_norm_epsilon"),
    }


def mamba(config: Config) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.state_size,
        "ssm.inner_size": config.intermediate_size,
        "ssm.time_step_rank": config.time_step_rank,
        "ssm.dt_b_c_rms": hasattr(config, "mixer_rms_eps"),
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "feed_forward_length": 0,
    }


def jamba(config: Config) -> dict[str, Any]:
    of_experts = {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    return {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.time_step_rank": config.mamba_dt_rank,
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types
        ],
        **of_experts,
    }


def granite_hybrid(config: Config) -> dict[str, Any]:
    size = config.mamba_expand * config.hidden_size
    return {
        **granite(config),
        **experts(config),
        **ssm(config, size),
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "attention.head_count_kv": [
            config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types
        ],
        "rope.scaling.finetuned": False,
    }


def delta(config: Config) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "rope.dimension_count": config.head_dim // 4,
    }
