"""GGUF configs: converts each architecture's own metadata of a GGUF file to values of config.json.

Used by the table in gguf_architectures.py. gguf_state_configs.py has the models with states; gguf_metadata.py converts the
values that all architectures have. Values that a file omits because its converter assumes them are added here too.
"""

from typing import Any

from tetrad.worker_svc.checkpoint.gguf_facts import Facts

_SIGMOID = 2
"""GGUF's number for routers with sigmoid scores."""
_YARN_UNIT = 0.1
"""Factor by which yarn_log_multiplier is scaled in DeepSeek's files."""
_LLAMA4_PATTERN, _LLAMA4_EXPERTS_WITHOUT_NORMS = 4, 128
_GEMMA2_LAYERS_27B, _GEMMA3_LAYERS_27B = 46, 62
"""Numbers of layers by which the 27B models are recognised; their attention is not scaled by the size of a head."""


def nothing(facts: Facts) -> dict[str, Any]:  # noqa: ARG001 - one signature
    """Return no values."""
    return {}


def gemma(facts: Facts) -> dict[str, Any]:  # noqa: ARG001 - one signature
    """Return the values of Gemma 1."""
    return {"hidden_activation": "gelu_pytorch_tanh"}


def gemma2(facts: Facts) -> dict[str, Any]:
    """Return the values of Gemma 2."""
    return {
        "attn_logit_softcapping": facts("attn_logit_softcapping"),
        "final_logit_softcapping": facts("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA2_LAYERS_27B),
    }


def gemma3(facts: Facts) -> dict[str, Any]:
    """Return the values of Gemma 3."""
    return {
        "final_logit_softcapping": facts("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA3_LAYERS_27B),
        "rope_local_base_freq": facts("rope.freq_base_swa"),
    }


def _query_scalar(facts: Facts, layers_27b: int) -> Any:
    if facts("block_count") == layers_27b:
        return facts("embedding_length") // facts("attention.head_count")
    return facts("attention.key_length")


def granite(facts: Facts) -> dict[str, Any]:
    """Return the values of Granite 3."""
    return {
        "attention_multiplier": facts("attention.scale"),
        "embedding_multiplier": facts("embedding_scale"),
        "residual_multiplier": facts("residual_scale"),
        "logits_scaling": facts("logit_scale"),
    }


def experts(facts: Facts) -> dict[str, Any]:
    """Return the values of experts; older files give their size as the size of all MLPs."""
    return {
        "num_local_experts": facts("expert_count"),
        "num_experts": facts("expert_count"),
        "num_experts_per_tok": facts("expert_used_count"),
        "moe_intermediate_size": facts("expert_feed_forward_length") or facts("feed_forward_length"),
        "shared_expert_intermediate_size": facts("expert_shared_feed_forward_length"),
    }


def llama(facts: Facts) -> dict[str, Any]:
    """Return the values of Llama, Mistral and Mixtral."""
    return experts(facts) if facts("expert_count") else {}


def mistral3(facts: Facts) -> dict[str, Any]:
    """Return the values of Mistral Small 3.1, and of Ministral 3, which scales queries by position. YaRN has mscale 1."""
    if facts("expert_count"):
        raise facts.refuse("with experts")
    beta, gain = facts("attention.temperature_scale"), facts("rope.scaling.yarn_log_multiplier")
    if facts("rope.scaling.type") != "yarn":
        return {"architectures": ["MistralForCausalLM"]}
    scaling = scaling_of(facts) | ({"mscale": 1.0, "mscale_all_dim": gain} if gain else {})
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "rope_scaling": scaling}
    scaling |= {"rope_theta": facts("rope.freq_base"), "llama_4_scaling_beta": beta}
    return {"rope_parameters": scaling, "rope_scaling": None}


def scaling_of(facts: Facts) -> dict[str, Any]:
    """Return the scaling of rotary embeddings in config.json's form."""
    scaling = {
        "rope_type": facts("rope.scaling.type"),
        "factor": facts("rope.scaling.factor"),
        "attention_factor": facts("rope.scaling.yarn_attn_factor") or facts("rope.scaling.attn_factor"),
        "beta_fast": facts("rope.scaling.yarn_beta_fast"),
        "beta_slow": facts("rope.scaling.yarn_beta_slow"),
        "original_max_position_embeddings": facts("rope.scaling.original_context_length"),
    }
    return {key: value for key, value in scaling.items() if value is not None}


def qwen3_moe(facts: Facts) -> dict[str, Any]:
    """Return the values of Qwen3 MoE."""
    return {**experts(facts), "norm_topk_prob": True}


def granite_moe(facts: Facts) -> dict[str, Any]:
    """Return the values of Granite 3 MoE."""
    if facts("expert_shared_feed_forward_length"):
        raise facts.refuse("with a shared expert")
    return granite(facts) | experts(facts)


def gpt_oss(facts: Facts) -> dict[str, Any]:
    """Return the values of gpt-oss."""
    scaling = {
        "rope_type": "yarn",
        "factor": facts("rope.scaling.factor"),
        "original_max_position_embeddings": facts("rope.scaling.original_context_length"),
        "truncate": False,
    }
    return {
        **experts(facts),
        "intermediate_size": facts("expert_feed_forward_length"),
        "rope_scaling": scaling if facts("rope.scaling.type") == "yarn" else {"rope_type": "default"},
    }


def layer_norm(facts: Facts) -> dict[str, Any]:
    """Return the values of families with LayerNorm."""
    return {"layer_norm_eps": facts("attention.layer_norm_epsilon")} | partial_rotation(facts)


def mpt(facts: Facts) -> dict[str, Any]:
    """Return the values of MPT; a largest bias of 0 means that positions are embedded instead."""
    num_heads, num_kv_heads = facts("attention.head_count"), facts("attention.head_count_kv")
    attention = {
        "alibi": facts("attention.max_alibi_bias") != 0,
        "alibi_bias_max": facts("attention.max_alibi_bias"),
        "attn_type": "multihead_attention" if num_kv_heads in (None, num_heads) else "grouped_query_attention",
        "clip_qkv": facts("attention.clamp_kqv"),
        "kv_n_heads": num_kv_heads,
    }
    return layer_norm(facts) | {"attn_config": attention, "no_bias": not facts.has("blk.0.attn_norm.bias")}


def exaone(facts: Facts) -> dict[str, Any]:
    """Return the values of EXAONE 3; some files store the epsilon of its RMS norms under LayerNorm's key."""
    return {"layer_norm_epsilon": facts("attention.layer_norm_epsilon")}


def falcon(facts: Facts) -> dict[str, Any]:
    """Return the values of Falcon: one KV head (7B), or several and, but in the 11B model, a norm for each branch."""
    num_kv_heads = facts("attention.head_count_kv") or 1
    return layer_norm(facts) | {
        "new_decoder_architecture": num_kv_heads > 1,
        "num_kv_heads": num_kv_heads,
        "num_ln_in_parallel_attn": 2 if facts.has("blk.0.attn_norm_2.weight") else 1,
    }


def gpt_neox(facts: Facts) -> dict[str, Any]:
    """Return the values of GPT-NeoX and Pythia."""
    return layer_norm(facts) | {"use_parallel_residual": facts("use_parallel_residual")}


def partial_rotation(facts: Facts) -> dict[str, Any]:
    """Return the share of a head with rotary embeddings."""
    turned = facts("rope.dimension_count")
    head_dim = facts("attention.key_length") or facts("embedding_length") // facts("attention.head_count")
    # The family rounds the product of share and size down; with half a dimension more, it gives the same number again.
    return {"partial_rotary_factor": min((turned + 0.5) / head_dim, 1.0)} if turned else {}


def glm4(facts: Facts) -> dict[str, Any]:
    """Return the values of GLM-4-0414. Files of models that read images have rows in another order and are refused."""
    if facts("rope.dimension_sections"):
        raise facts.refuse("with sections of the rotary embedding")
    return partial_rotation(facts)


def glm4_moe(facts: Facts) -> dict[str, Any]:
    """Return the values of GLM-4.5 and 4.6; all published models have one group of experts."""
    return {
        **partial_rotation(facts),
        "use_qk_norm": facts.has("blk.0.attn_q_norm.weight"),
        "n_routed_experts": facts("expert_count"),
        "num_experts_per_tok": facts("expert_used_count"),
        "moe_intermediate_size": facts("expert_feed_forward_length"),
        "n_shared_experts": facts("expert_shared_count"),
        "first_k_dense_replace": facts("leading_dense_block_count"),
        "routed_scaling_factor": facts("expert_weights_scale"),
        "norm_topk_prob": facts("expert_weights_norm"),
    }


def deepseek2(facts: Facts) -> dict[str, Any]:
    """Return the values of DeepSeek V2, V3 and models of the same structure; V3's routers are sigmoids with a correction.

    Newer files give the size of a head in keys with "mla", because their other sizes are those of the cache. Older files do not
    give the groups of experts; as in llama.cpp, there are no groups then.
    """
    if not facts("expert_count"):
        raise facts.refuse("without experts")
    is_v3 = facts("expert_gating_func") == _SIGMOID or facts.has_in_layers("exp_probs_b.bias")
    if facts("expert_weights_norm") and not is_v3:
        raise facts.refuse("with weights of a softmax that are divided by their sum")
    turned = facts("rope.dimension_count")
    groups = facts("expert_group_count") or 1
    return {
        "architectures": ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"],
        "q_lora_rank": facts("attention.q_lora_rank"),
        "kv_lora_rank": facts("attention.kv_lora_rank"),
        "qk_nope_head_dim": (facts("attention.key_length_mla") or facts("attention.key_length")) - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": facts("attention.value_length_mla") or facts("attention.value_length"),
        "n_routed_experts": facts("expert_count"),
        "num_experts_per_tok": facts("expert_used_count"),
        "moe_intermediate_size": facts("expert_feed_forward_length"),
        "n_shared_experts": facts("expert_shared_count"),
        "first_k_dense_replace": facts("leading_dense_block_count"),
        "routed_scaling_factor": facts("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(facts("expert_weights_norm")),
        "topk_method": None if is_v3 else "group_limited_greedy" if groups > 1 else "greedy",
        "n_group": groups,
        "topk_group": facts("expert_group_used_count") or 1,
        "rope_scaling": _deepseek_scaling(facts),
    }


def _deepseek_scaling(facts: Facts) -> dict[str, Any] | None:
    """Return the scaling; YaRN's two gains are equal in all published models, so rotation does not scale queries and keys."""
    kind, gain = facts("rope.scaling.type"), facts("rope.scaling.yarn_log_multiplier")
    if kind in (None, "none"):
        return None
    if kind != "yarn":
        return scaling_of(facts)
    return {"attention_factor": 1.0} | scaling_of(facts) | ({"mscale_all_dim": gain / _YARN_UNIT} if gain else {})


def llama4(facts: Facts) -> dict[str, Any]:
    """Return the values of Llama 4. The size of chunks and the scaling of queries are those of all published models."""
    if not facts("expert_count"):
        raise facts.refuse("without experts")
    if facts("attention.sliding_window") == 0 or facts("attention.sliding_window_pattern") not in (None, _LLAMA4_PATTERN):
        raise facts.refuse("with another pattern of chunks than three of four layers")
    return {
        "num_local_experts": facts("expert_count"),
        "num_experts_per_tok": facts("expert_used_count"),
        "intermediate_size": facts("expert_feed_forward_length"),
        "intermediate_size_mlp": facts("feed_forward_length"),
        "interleave_moe_layer_step": facts("interleave_moe_layer_step"),
        "use_qk_norm": facts("expert_count") != _LLAMA4_EXPERTS_WITHOUT_NORMS,
    }


def cohere(facts: Facts) -> dict[str, Any]:
    """Return the values of Command-R and R+; R+ has a norm for each head."""
    return layer_norm(facts) | {"logit_scale": facts("logit_scale"), "use_qk_norm": facts.has("blk.0.attn_q_norm.weight")}


def cohere2(facts: Facts) -> dict[str, Any]:
    """Return the values of Command-A and R7B."""
    return layer_norm(facts) | {"logit_scale": facts("logit_scale")}


def windows(facts: Facts) -> dict[str, Any]:
    """Return the layers with a window if the file lists them; otherwise the family determines them."""
    pattern = facts("attention.sliding_window_pattern")
    if not facts("attention.sliding_window") or not isinstance(pattern, list):
        return {}
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}


def olmo2(facts: Facts) -> dict[str, Any]:
    """Return the values of OLMo 2, and of OLMo 3, which has windows."""
    return windows(facts) | ({"architectures": ["Olmo3ForCausalLM"]} if facts("attention.sliding_window") else {})
