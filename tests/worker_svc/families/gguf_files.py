"""GGUF files of tiny models, as llama.cpp's converter writes them: its names of tensors are those of the gguf package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Config = Any
"""A config of transformers."""
Values = Callable[[Config], Mapping[str, Any]]


def _nothing(config: Config) -> Mapping[str, Any]:
    return {}


def _experts(config: Config) -> dict[str, Any]:
    size = getattr(config, "moe_intermediate_size", config.intermediate_size)
    return {
        "expert_count": getattr(config, "num_experts", None) or config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": size,
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", 0),
    }


def _granite(config: Config) -> dict[str, Any]:
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    scaling = config.rope_parameters
    return _experts(config) | {
        "attention.sliding_window": config.sliding_window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }


def _turned(config: Config) -> dict[str, Any]:
    share = config.rope_parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    return {"rope.dimension_count": int(share * config.hidden_size) // config.num_attention_heads}


@dataclass(frozen=True)
class Conversion:
    """What the converter does for an architecture.

    Attributes:
        architecture: GGUF's name.
        values: metadata beyond sizes.
        has_interleaved_heads: whether the two rows of a rotated pair are put side by side.
        adds_one: whether weights of norms get the 1 that the model adds.
    """

    architecture: gguf.MODEL_ARCH
    values: Values = _nothing
    has_interleaved_heads: bool = False
    adds_one: bool = False


CONVERSIONS = {
    "arcee": Conversion(gguf.MODEL_ARCH.ARCEE, has_interleaved_heads=True),
    "gemma": Conversion(gguf.MODEL_ARCH.GEMMA, adds_one=True),
    "gemma2": Conversion(
        gguf.MODEL_ARCH.GEMMA2,
        lambda config: {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
            "attention.sliding_window": config.sliding_window,
        },
        adds_one=True,
    ),
    "gemma3": Conversion(
        gguf.MODEL_ARCH.GEMMA3,
        lambda config: {
            "attention.sliding_window": config.sliding_window,
            "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        },
        adds_one=True,
    ),
    "granite": Conversion(
        gguf.MODEL_ARCH.GRANITE,
        _granite,
        has_interleaved_heads=True,
    ),
    "granite_moe": Conversion(
        gguf.MODEL_ARCH.GRANITE_MOE, lambda config: _granite(config) | _experts(config), has_interleaved_heads=True
    ),
    "gpt_oss": Conversion(gguf.MODEL_ARCH.GPT_OSS, _gpt_oss),
    "llama": Conversion(gguf.MODEL_ARCH.LLAMA, has_interleaved_heads=True),
    "mistral": Conversion(
        gguf.MODEL_ARCH.LLAMA, lambda config: {"attention.sliding_window": config.sliding_window}, has_interleaved_heads=True
    ),
    "mixtral": Conversion(
        gguf.MODEL_ARCH.LLAMA,
        lambda config: _experts(config) | {"attention.sliding_window": config.sliding_window or 0},
        has_interleaved_heads=True,
    ),
    "nemotron": Conversion(gguf.MODEL_ARCH.NEMOTRON, _turned, adds_one=True),
    "olmo2": Conversion(gguf.MODEL_ARCH.OLMO2),
    "olmoe": Conversion(gguf.MODEL_ARCH.OLMOE, _experts),
    "phi": Conversion(gguf.MODEL_ARCH.PHI2, _turned),
    "phi3": Conversion(
        gguf.MODEL_ARCH.PHI3, lambda config: _turned(config) | {"attention.sliding_window": config.sliding_window or 0}
    ),
    "qwen2": Conversion(gguf.MODEL_ARCH.QWEN2),
    "qwen2_moe": Conversion(gguf.MODEL_ARCH.QWEN2MOE, _experts),
    "qwen3": Conversion(gguf.MODEL_ARCH.QWEN3),
    "qwen3_moe": Conversion(gguf.MODEL_ARCH.QWEN3MOE, _experts),
    "seed_oss": Conversion(gguf.MODEL_ARCH.SEED_OSS),
    "smollm3": Conversion(gguf.MODEL_ARCH.SMOLLM3, has_interleaved_heads=True),
    "starcoder2": Conversion(gguf.MODEL_ARCH.STARCODER2, lambda config: {"attention.sliding_window": config.sliding_window}),
}
"""Name of a tiny model -> its conversion."""


def write_gguf(path: Path, name: str, model: torch.nn.Module, kind: gguf.GGMLQuantizationType) -> None:
    """Write a tiny model; matrices whose rows are whole blocks are quantized to `kind`."""
    conversion, config = CONVERSIONS[name], model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[conversion.architecture])
    for key, value in (_sizes(config) | dict(conversion.values(config))).items():
        add = {float: writer.add_float32, str: writer.add_string}.get(type(value), writer.add_uint32)
        add(f"{writer.arch}.{key}", value)
    names = gguf.get_tensor_name_map(conversion.architecture, config.num_hidden_layers)
    for key, tensor in _unfused(model.state_dict()).items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _converted(conversion, config, key, tensor).float().numpy()
        name = names.get_name(key, (".weight", ".bias"))
        is_quantized = values.ndim >= 2 and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        is_kept = name.endswith((".bias", "ffn_gate_inp.weight"))
        its_kind = kind if is_quantized and not is_kept else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), its_kind), raw_dtype=its_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _unfused(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by the names of a checkpoint, with gate and up of experts apart."""
    found = {}
    for key, stored in state.items():
        stem, _, rest = key.partition(".experts.")
        if not rest:
            name = key.replace("self_attn.sinks", "self_attn.sinks.weight").replace("block_sparse_moe.router.", "mlp.gate.")
            found[name] = stored[0] if "shared_expert_gate" in key else stored
            continue
        kind = "bias" if key.endswith("_bias") else "weight"
        is_gpt_oss = f"{stem}.experts.down_proj_bias" in state
        tensor = stored.transpose(1, 2) if is_gpt_oss and kind == "weight" else stored
        stem = f"{stem.replace('block_sparse_moe', 'mlp')}.experts"
        if "down" in rest:
            found[f"{stem}.down_proj.{kind}"] = tensor
            continue
        halves = (tensor[:, ::2], tensor[:, 1::2]) if is_gpt_oss else tensor.chunk(2, 1)
        found |= {f"{stem}.{part}_proj.{kind}": half for part, half in zip(("gate", "up"), halves, strict=True)}
    return found


def _sizes(config: Config) -> dict[str, Any]:
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(
            config, "layer_norm_eps", getattr(config, "norm_eps", getattr(config, "norm_epsilon", None))
        ),
        "rope.freq_base": (config.rope_parameters or {}).get("rope_theta"),
    }
    return {key: value for key, value in values.items() if value is not None}


def _converted(conversion: Conversion, config: Config, key: str, tensor: torch.Tensor) -> torch.Tensor:
    if conversion.adds_one and key.endswith("norm.weight"):
        return tensor + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(key.split(".")[-2], 0)
    if not heads or not conversion.has_interleaved_heads:
        return tensor
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
