"""A tiny model around a text model for every wrapper, as transformers saves it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.worker_svc.families.tiny_models import (
    ABSENT,
    ATTENTION,
    DEEPSEEK,
    DELTA,
    DELTA_EXPERTS,
    EXPERTS,
    GEMMA,
    GEMMA4,
    SIZES,
    WINDOW,
)

_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_VISION |= {"image_size": 28, "patch_size": 14}
_FINE = _VISION | {"patch_size": 7}
_INTERN = _VISION | {"image_size": [28, 28], "patch_size": [7, 7]}
_PIXTRAL = _VISION | {"head_dim": 16, "image_size": 112}
_QWEN = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
_WINDOWS = {"window_size": 56, "fullatt_block_indexes": [1]}
_QWEN3 = _QWEN | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_HALF_MROPE = _MROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
_DELTA_MROPE = {
    "rope_parameters": _MROPE | {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
}
_GLM4V = {"rope_parameters": _HALF_MROPE, "head_dim": ABSENT}
_GLM_VISION = _QWEN | {"image_size": 28, "patch_size": 14}
_QWEN3_MOE = EXPERTS | {"rope_parameters": _MROPE, "norm_topk_prob": True, "moe_intermediate_size": 24}
_LLAMA4 = {
    "num_hidden_layers": 4,
    "num_local_experts": 2,
    "intermediate_size_mlp": 80,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": WINDOW,
    "floor_scale": 64,
}
_SHUFFLED = _FINE | {"intermediate_size": 128, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
WRAPPERS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "gemma3": ("gemma3", GEMMA, _FINE),
    "glm46v": ("glm46v", _GLM4V, _GLM_VISION),
    "glm4v": ("glm4v", _GLM4V, _GLM_VISION),
    "glm4v_moe": ("glm4v_moe", DEEPSEEK | {"rope_parameters": _HALF_MROPE}, _GLM_VISION),
    "idefics3": ("idefics3", {"model_type": "llama"}, _FINE),
    "internvl": ("internvl", {"model_type": "qwen2"}, _INTERN),
    "internvl of qwen3": ("internvl", {"model_type": "qwen3"}, _INTERN),
    "lfm2_vl": ("lfm2_vl", {"head_dim": ABSENT, "layer_types": ["conv", ATTENTION, "conv"]}, _VISION),
    "llama4": ("llama4", _LLAMA4, _SHUFFLED),
    "llava": ("llava", {"model_type": "llama"}, _VISION | {"model_type": "clip_vision_model"}),
    "llava of pixtral": ("llava", {"model_type": "mistral"}, _PIXTRAL | {"model_type": "pixtral"}),
    "llava_next": ("llava_next", {"model_type": "mistral"}, _VISION | {"model_type": "clip_vision_model"}),
    "llava_onevision": ("llava_onevision", {"model_type": "qwen2"}, _VISION | {"model_type": "siglip_vision_model"}),
    "mistral3": ("mistral3", {"model_type": "mistral", "sliding_window": WINDOW}, _PIXTRAL),
    "mistral3 of ministral3": ("mistral3", {"model_type": "ministral3"}, _PIXTRAL),
    "qwen2_vl": ("qwen2_vl", {"rope_parameters": _MROPE}, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}),
    "qwen2_5_vl": ("qwen2_5_vl", {"rope_parameters": _MROPE}, _QWEN | _WINDOWS),
    "qwen3_5": ("qwen3_5", DELTA | _DELTA_MROPE, _QWEN | {"num_position_embeddings": 16}),
    "qwen3_5_moe": ("qwen3_5_moe", DELTA_EXPERTS | _DELTA_MROPE, _QWEN | {"num_position_embeddings": 16}),
    "qwen3_vl": ("qwen3_vl", {"rope_parameters": _MROPE | {"mrope_interleaved": True}}, _QWEN3),
    "qwen3_vl_moe": ("qwen3_vl_moe", _QWEN3_MOE, _QWEN3),
    "smolvlm": ("smolvlm", {"model_type": "llama"}, _FINE),
}
"""Name -> model_type, changes of the text model's SIZES, config of what reads images."""
FOREIGN: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "gemma4": ("gemma4", GEMMA4, _VISION | {"head_dim": 16}),
}
"""Wrappers whose text model transformers' code runs."""


def save_wrapper(directory: Path, name: str, **values: object) -> torch.nn.Module:
    """Write a wrapper's model as transformers does, and return transformers' own; `values` are further ones of its config."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    model_type, changes, vision = (dict(WRAPPERS) | dict(FOREIGN))[name]
    torch.manual_seed(1)
    text = {key: value for key, value in (SIZES | changes).items() if value is not ABSENT}
    parts = {"text_config": text, "vision_config": dict(vision), "audio_config": None}
    config = AutoConfig.for_model(model_type, **parts, **values)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1 and "language_model" not in key and "lm_head" not in key:
            torch.nn.init.normal_(parameter, std=0.2)
        if "norm" in key and parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.mean() > 0.5 else 0.1, std=0.2)
    model.eval().save_pretrained(directory)
    return model
