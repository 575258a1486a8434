"""Wrappers: describe the text model of a model that also reads images.

Its config is the wrapper's text_config, or in older files a part of the wrapper's own config; its tensors have a prefix. The
description has what images change in the text model: positions on axes, and layers behind which rows of images are added. The
vision model is not described; media/ runs it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.axes import in_sections, in_turns, with_axes
from tetrad.worker_svc.families.experts import glm4_moe
from tetrad.worker_svc.families.gemma import gemma3
from tetrad.worker_svc.families.glm import glm4
from tetrad.worker_svc.families.lfm2 import lfm2
from tetrad.worker_svc.families.llama import llama, ministral3, mistral
from tetrad.worker_svc.families.llama4 import llama4
from tetrad.worker_svc.families.qwen import qwen2, qwen3, qwen3_moe
from tetrad.worker_svc.families.qwen_delta import qwen3_5, qwen3_5_moe
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import TEXT_PARTS, Rows, Stored

Describe = Callable[[Values], ModelConfig]

_GEMMA3: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
"""Values that Gemma 3's files omit if they equal transformers' defaults."""
_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
"""The values of Llama's files."""
_MISTRAL = {**_LLAMA, "intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 131_072}
_QWEN2 = {
    **_LLAMA,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}
"""The values of Qwen2 in LLaVA-OneVision's files."""
_QWEN2_SECTION, _QWEN3_SECTION, _QWEN3_5_SECTION, _GLM_SECTION = (16, 24, 24), (24, 20, 20), (11, 11, 10), (8, 12, 12)
"""Pairs that turn by time, by height and by width, if the config does not say."""
_DEEP_LAYERS = (8, 16, 24)
"""Layers of Qwen3-VL's vision tower whose rows are added behind the text model's first layers, if the config does not say."""


def _qwen3_vl_moe(values: Values) -> ModelConfig:
    """Describe Qwen3-VL MoE's text model: all experts are in one tensor, [experts, inputs, outputs] in the published files."""
    config = qwen3_moe(values)
    size = next(layer.experts.intermediate_size for layer in config.layers if layer.experts)
    stacked: dict[str, Any] = {"is_stacked": True, "weight": ""}
    names = {
        f"mlp.experts.{{expert}}.{part}_proj": Stored(
            "mlp.experts.gate_up_proj", rows=Rows(1, 2 * size, *rows), columns=config.hidden_size, **stacked
        )
        for part, rows in (("gate", (0, size)), ("up", (size, 2 * size)))
    }
    names["mlp.experts.{expert}.down_proj"] = Stored("mlp.experts.down_proj", columns=size, **stacked)
    return replace(config, tensors=replace(config.tensors, in_layer=dict(config.tensors.in_layer) | names))


TEXT_TYPES: Mapping[str, tuple[Describe, Mapping[str, Any]]] = {
    "gemma3_text": (gemma3, _GEMMA3),
    "glm4v_moe_text": (with_axes(glm4_moe, in_sections, _GLM_SECTION), {}),
    "glm4v_text": (with_axes(glm4, in_sections, _GLM_SECTION), {}),
    "lfm2": (lfm2, {}),
    "llama": (llama, _LLAMA),
    "llama4_text": (llama4, {}),
    "ministral3": (ministral3, {}),
    "mistral": (mistral, _MISTRAL),
    "qwen2": (qwen2, _QWEN2),
    "qwen2_5_vl_text": (with_axes(qwen2, in_sections, _QWEN2_SECTION), {}),
    "qwen2_vl_text": (with_axes(qwen2, in_sections, _QWEN2_SECTION), {}),
    "qwen3": (qwen3, {}),
    "qwen3_5_moe_text": (with_axes(qwen3_5_moe, in_turns, _QWEN3_5_SECTION), {}),
    "qwen3_5_text": (with_axes(qwen3_5, in_turns, _QWEN3_5_SECTION), {}),
    "qwen3_vl_moe_text": (with_axes(_qwen3_vl_moe, in_turns, _QWEN3_SECTION), {}),
    "qwen3_vl_text": (with_axes(qwen3, in_turns, _QWEN3_SECTION), {}),
}
"""model_type of a text_config -> its family, and default values that the config may omit."""


def wrapper(text_type: str, *, is_tied: bool = False, is_deep: bool = False) -> Describe:
    """Return the describing function of a wrapper.

    Args:
        text_type: the text model's type, if the config gives none.
        is_tied: whether the output layer is tied to the embedding, if the wrapper's config does not say.
        is_deep: whether further rows of images are added behind the first layers.
    """

    def describe(values: Values) -> ModelConfig:
        """Describe the text model; its tensors have the wrapper's prefix."""
        inner = values.get("text_config", default=None)
        model_type = str((inner or {}).get("model_type") or text_type)
        if model_type not in TEXT_TYPES:
            known = ", ".join(sorted(TEXT_TYPES))
            raise ModelError(
                f"The model's text_config has model_type {model_type[:80]!r}, which is not supported; supported: {known}."
            )
        family, defaults = TEXT_TYPES[model_type]
        text = values.inside(inner, defaults, is_tied=is_tied)
        config = family(text)
        text.check_all_read()
        num_deep = _num_deep_layers(values, config) if is_deep else 0
        return replace(config, num_deep_layers=num_deep, tensors=replace(config.tensors, text_parts=TEXT_PARTS))

    return describe


def _num_deep_layers(values: Values, config: ModelConfig) -> int:
    vision = values.get("vision_config", default={})
    number = len(vision.get("deepstack_visual_indexes", _DEEP_LAYERS))
    if number > config.num_layers:
        raise ModelError(
            f"The model's config has deepstack_visual_indexes for {number} layers; the text model has {config.num_layers}."
        )
    return number
