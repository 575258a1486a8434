"""A tiny model of every family: random weights, in the shape that its config class of transformers gives it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ABSENT = object()
"""Of a size that a config class does not have."""
SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
WINDOW = 24
GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": WINDOW}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": ABSENT,
}
NTK_ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 8.0,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 2,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 1.3, 2.5, 7.0],
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 256,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
ATTENTION = "full_attention"
MAMBA2 = {
    "intermediate_size": ABSENT,
    "num_attention_heads": ABSENT,
    "num_key_value_heads": ABSENT,
    "max_position_embeddings": ABSENT,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 2,
}
MAMBA = {
    "intermediate_size": ABSENT,
    "num_attention_heads": ABSENT,
    "num_key_value_heads": ABSENT,
    "head_dim": ABSENT,
    "max_position_embeddings": ABSENT,
    "state_size": 8,
}
HYBRID = {
    "head_dim": ABSENT,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 4,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
JAMBA = {
    "head_dim": ABSENT,
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 4,
    "mamba_d_state": 4,
}
LINEAR = "linear_attention"
NEMOTRON_H = {
    "num_hidden_layers": ABSENT,
    "layers_block_type": [LINEAR, "moe", ATTENTION, LINEAR, "mlp"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 4,
    "n_groups": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": [LINEAR, LINEAR, ATTENTION, LINEAR],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
DELTA_EXPERTS = DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": WINDOW,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": True,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 320,
    "final_logit_softcapping": 10.0,
}
"""Layers have heads of two sizes and inputs of their own; the last two read the keys and values of earlier ones."""
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
GPT_J = {"intermediate_size": ABSENT, "num_key_value_heads": ABSENT, "head_dim": ABSENT, "rotary_dim": 8}
BLOOM = {"head_dim": ABSENT, "intermediate_size": ABSENT, "num_key_value_heads": ABSENT, "max_position_embeddings": ABSENT}
MPT = BLOOM | {"hidden_size": ABSENT, "d_model": 64, "num_hidden_layers": ABSENT, "n_layers": 3, "max_seq_len": 2048}
MPT |= {"num_attention_heads": ABSENT, "n_heads": 4}
FALCON = {"head_dim": ABSENT, "intermediate_size": ABSENT, "num_key_value_heads": ABSENT}
FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with dynamic scaling": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "llama4": (
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "intermediate_size_mlp": 80,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": WINDOW,
            "floor_scale": 64,
        },
    ),
    "lfm2": (
        "lfm2",
        {
            "head_dim": ABSENT,
            "num_hidden_layers": 5,
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
        },
    ),
    "lfm2 with biases": ("lfm2", {"head_dim": ABSENT, "layer_types": ["conv", ATTENTION, "conv"], "conv_bias": True}),
    "lfm2_moe": (
        "lfm2_moe",
        EXPERTS | {"head_dim": ABSENT, "layer_types": ["conv", ATTENTION, "conv"], "num_dense_layers": 1},
    ),
    "mamba": ("mamba", MAMBA),
    "mamba with biases": (
        "mamba",
        MAMBA | {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "expand": 3, "time_step_rank": 7},
    ),
    "falcon_mamba": ("falcon_mamba", MAMBA | {"mixer_rms_eps": 1e-2}),
    "jamba": ("jamba", JAMBA),
    "jamba without experts": (
        "jamba",
        JAMBA | {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 7, "rms_norm_eps": 1e-2},
    ),
    "mamba2": ("mamba2", MAMBA2),
    "mamba2 with biases": ("mamba2", MAMBA2 | {"use_bias": True, "tie_word_embeddings": True}),
    "bamba": ("bamba", HYBRID | {"attn_layer_indices": [1]}),
    "falcon_h1": (
        "falcon_h1",
        HYBRID
        | {
            "mamba_d_ssm": 128,
            "mlp_multipliers": [0.8, 0.6],
            "ssm_multipliers": [0.5, 1.5, 0.7, 0.9, 1.2],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.7,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.6,
            "key_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.4,
        },
    ),
    "falcon_h1 with norms": ("falcon_h1", HYBRID | {"mamba_d_ssm": 128, "mamba_rms_norm": True, "projectors_bias": True}),
    "falcon_h1 with norms after gates": (
        "falcon_h1",
        HYBRID | {"mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_conv_bias": False},
    ),
    "granite_hybrid": (
        "granitemoehybrid",
        HYBRID
        | {
            "num_local_experts": 4,
            "shared_intermediate_size": 40,
            "layer_types": [LINEAR, ATTENTION, LINEAR],
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
        },
    ),
    "granite_hybrid without experts": (
        "granitemoehybrid",
        HYBRID
        | {
            "num_local_experts": 0,
            "shared_intermediate_size": 40,
            "layer_types": [LINEAR, ATTENTION, LINEAR],
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
        },
    ),
    "qwen3_next": ("qwen3_next", DELTA_EXPERTS),
    "qwen3_5": ("qwen3_5_text", DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", DELTA_EXPERTS),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "ministral": (
        "ministral",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "ministral3": ("ministral3", {}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5}),
    "phi3 with long contexts": (
        "phi3",
        {
            "original_max_position_embeddings": 2,
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [1.0, 1.1, 1.3, 1.7, 2.5, 4.0, 7.0, 12.0],
            },
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "granite": (
        "granite",
        {"embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 3.0},
    ),
    "seed_oss": ("seed_oss", {"attention_out_bias": True}),
    "arcee": ("arcee", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "olmoe": ("olmoe", EXPERTS),
    "granite_moe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gpt_oss without biases of attention": ("gpt_oss", GPT_OSS | {"attention_bias": False}),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe", {"n_group": 4, "topk_group": 2, "use_qk_norm": True, **DEEPSEEK}),
    "deepseek_v2": ("deepseek_v2", LATENT | DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek_v2 in groups": (
        "deepseek_v2",
        LATENT | DEEPSEEK | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    ),
    "deepseek_v2 with biases": ("deepseek_v2", LATENT | DEEPSEEK | {"attention_bias": True, "mlp_bias": True}),
    "deepseek_v3": ("deepseek_v3", LATENT | DEEPSEEK | {"n_group": 4, "topk_group": 2, "rope_scaling": YARN}),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT | DEEPSEEK | {"n_group": 4, "topk_group": 2}),
    "ernie": ("ernie4_5", {}),
    "ernie with biases": ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False}),
    "hunyuan": ("hunyuan_v1_dense", {"attention_bias": True, "rope_parameters": NTK_ALPHA}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "exaone4": ("exaone4", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "cohere with norms of heads": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "glm": ("glm", {"attention_bias": True}),
    "glm4": ("glm4", {"attention_bias": True}),
    "phi": ("phi", {}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm in parallel": ("stablelm", {"use_parallel_residual": True}),
    "nemotron": ("nemotron", {}),
    "nemotron_h": ("nemotron_h", NEMOTRON_H),
    "nemotron_h without states": (
        "nemotron_h",
        NEMOTRON_H | {"layers_block_type": [ATTENTION, "mlp", ATTENTION, "mlp"], "mlp_bias": True},
    ),
    "nemotron_h with biases": ("nemotron_h", NEMOTRON_H | {"attention_bias": True, "mlp_bias": True, "use_bias": True}),
    "gpt2": ("gpt2", {"intermediate_size": ABSENT, "num_key_value_heads": ABSENT, "head_dim": ABSENT}),
    "gpt_j": ("gptj", GPT_J),
    "gpt_neo": (
        "gpt_neo",
        {
            "head_dim": ABSENT,
            "num_key_value_heads": ABSENT,
            "num_hidden_layers": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": WINDOW,
        },
    ),
    "codegen": ("codegen", GPT_J),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": ABSENT}),
    "gpt_neox in turns": ("gpt_neox", {"num_key_value_heads": ABSENT, "use_parallel_residual": False}),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
    "falcon 7b": ("falcon", FALCON),
    "falcon 40b": ("falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon 11b": ("falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    "falcon 1b": ("falcon", FALCON | {"multi_query": False, "parallel_attn": False}),
    "falcon rw": ("falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    "falcon 7b with biases of scores": ("falcon", FALCON | {"alibi": True}),
    "bloom": ("bloom", BLOOM),
    "bloom with 12 heads": ("bloom", BLOOM | {"num_attention_heads": 12, "hidden_size": 192}),
    "bloom with a normed stream": ("bloom", BLOOM | {"apply_residual_connection_post_layernorm": True}),
    "mpt": ("mpt", MPT),
    "mpt with bounds": ("mpt", MPT | {"attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.2}}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}),
    "gemma3": ("gemma3_text", GEMMA | {"num_hidden_layers": 6}),
}
"""Name -> model_type, and what differs from SIZES."""
FOREIGN: dict[str, tuple[str, Mapping[str, Any]]] = {
    "helium": ("helium", {}),
    "helium with dynamic scaling": ("helium", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "minicpm3": ("minicpm3", LATENT),
    "modernbert_decoder": ("modernbert-decoder", {"head_dim": ABSENT, "local_attention": WINDOW}),
    "minicpm3 with long contexts": ("minicpm3", LATENT | {"rope_parameters": LONGROPE}),
    "cohere2_moe": ("cohere2_moe", EXPERTS | {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "gemma4": ("gemma4_text", GEMMA4),
}
"""The same of models that no family describes: transformers' code runs them."""


def change_config(directory: Path, **changes: object) -> None:
    """Replace values of a checkpoint's config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_family(directory: Path, name: str, **overrides: object) -> torch.nn.Module:
    """Write a family's model as transformers does, and return transformers' own; `overrides` are values of its config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = (FAMILIES | FOREIGN)[name]
    torch.manual_seed(1)
    sizes = {key: value for key, value in (SIZES | changes | overrides).items() if value is not ABSENT}
    config = AutoConfig.for_model(model_type, **sizes)
    has_biases_twice = model_type == "falcon" and config.alibi
    implementation = "sdpa" if has_biases_twice else "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for key, parameter in model.named_parameters():
        # Weights that training begins with at 0 or 1 would hide what is done with them.
        if key.endswith(("bias", "sinks", "correction_bias", ".D")) or "norm" in key or ".ln_" in key:
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.mean() > 0.5 else 0.1, std=0.2)
    for key, buffer in model.named_buffers():
        if key.endswith("expert_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    model.eval().save_pretrained(directory)
    return with_exact_biases(model) if has_biases_twice else model


def with_exact_biases(falcon: torch.nn.Module) -> torch.nn.Module:
    """Let a Falcon add the linear biases of BLOOM's code: its own rounds them to bfloat16, and adds them twice if "eager"."""
    from transformers.models.bloom import modeling_bloom
    from transformers.models.falcon import modeling_falcon

    forward = falcon.forward

    def exact_forward(*args: Any, **options: Any) -> Any:
        with patch.object(modeling_falcon, "build_alibi_tensor", modeling_bloom.build_alibi_tensor):
            return forward(*args, **options)

    falcon.forward = exact_forward
    return falcon
