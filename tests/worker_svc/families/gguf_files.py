"""GGUF files of tiny models, as llama.cpp's converter writes them: its names of tensors are those of the gguf package."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFWriter

from tests.worker_svc.families import gguf_metadata as metadata
from tests.worker_svc.families import gguf_tensors as tensors
from tests.worker_svc.families.gguf_metadata import Config

Values = Callable[[Config], Mapping[str, Any]]
Tensors = Callable[[Config, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Conversion:
    """What the converter does for an architecture.

    Attributes:
        architecture: GGUF's name.
        values: metadata beyond sizes.
        has_interleaved_heads: whether the two rows of a rotated pair are put side by side.
        adds_one: whether weights of norms get the 1 that the model adds.
        tensors: what else becomes of the tensors, by their names in the checkpoint.
        model: the tiny model that is converted; "": the one that has the conversion's name.
    """

    architecture: gguf.MODEL_ARCH
    values: Values = metadata.nothing
    has_interleaved_heads: bool = False
    adds_one: bool = False
    tensors: Tensors = lambda config, state: dict(state)
    model: str = ""


CONVERSIONS = {
    "arcee": Conversion(gguf.MODEL_ARCH.ARCEE, has_interleaved_heads=True),
    "bloom": Conversion(
        gguf.MODEL_ARCH.BLOOM,
        lambda config: {"context_length": 2048, "feed_forward_length": 4 * config.hidden_size},
        tensors=tensors.bloom,
    ),
    "cohere": Conversion(gguf.MODEL_ARCH.COMMAND_R, lambda config: {"logit_scale": config.logit_scale}),
    "cohere with norms of heads": Conversion(
        gguf.MODEL_ARCH.COMMAND_R, lambda config: {"logit_scale": float(config.logit_scale)}
    ),
    "cohere2": Conversion(
        gguf.MODEL_ARCH.COHERE2,
        lambda config: {"logit_scale": config.logit_scale, "attention.sliding_window": config.sliding_window},
    ),
    "deepseek_v2": Conversion(gguf.MODEL_ARCH.DEEPSEEK2, metadata.deepseek2, tensors=tensors.deepseek2),
    "deepseek_v2 in groups": Conversion(gguf.MODEL_ARCH.DEEPSEEK2, metadata.deepseek2, tensors=tensors.deepseek2),
    "deepseek_v2 of older files": Conversion(gguf.MODEL_ARCH.DEEPSEEK2, metadata.old_deepseek2, model="deepseek_v2"),
    "deepseek_v3": Conversion(gguf.MODEL_ARCH.DEEPSEEK2, metadata.deepseek2, tensors=tensors.deepseek2),
    "exaone": Conversion(gguf.MODEL_ARCH.EXAONE, model="llama"),
    "exaone4": Conversion(gguf.MODEL_ARCH.EXAONE4, metadata.windows),
    **{
        name: Conversion(gguf.MODEL_ARCH.FALCON, metadata.falcon, tensors=tensors.falcon)
        for name in ("falcon 7b", "falcon 40b", "falcon 11b")
    },
    "falcon_h1": Conversion(
        gguf.MODEL_ARCH.FALCON_H1, lambda config: metadata.ssm(config, config.mamba_d_ssm), tensors=tensors.falcon_h1
    ),
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
    "glm4": Conversion(gguf.MODEL_ARCH.GLM4, metadata.turned),
    "glm4_moe": Conversion(gguf.MODEL_ARCH.GLM4_MOE, metadata.glm4_moe, tensors=tensors.glm4_moe),
    "gpt2": Conversion(gguf.MODEL_ARCH.GPT2, lambda config: {"feed_forward_length": 4 * config.n_embd}, tensors=tensors.gpt2),
    "gpt_neox": Conversion(gguf.MODEL_ARCH.GPTNEOX, metadata.gpt_neox, tensors=tensors.gpt_neox),
    "gpt_neox in turns": Conversion(gguf.MODEL_ARCH.GPTNEOX, metadata.gpt_neox, tensors=tensors.gpt_neox),
    "granite": Conversion(
        gguf.MODEL_ARCH.GRANITE,
        metadata.granite,
        has_interleaved_heads=True,
    ),
    "granite_moe": Conversion(
        gguf.MODEL_ARCH.GRANITE_MOE,
        lambda config: metadata.granite(config) | metadata.experts(config),
        has_interleaved_heads=True,
    ),
    "gpt_oss": Conversion(gguf.MODEL_ARCH.GPT_OSS, metadata.gpt_oss),
    "granite_hybrid": Conversion(
        gguf.MODEL_ARCH.GRANITE_HYBRID, metadata.granite_hybrid, has_interleaved_heads=True, tensors=tensors.granite_hybrid
    ),
    "jamba": Conversion(gguf.MODEL_ARCH.JAMBA, metadata.jamba, tensors=tensors.mamba),
    "jamba without experts": Conversion(gguf.MODEL_ARCH.JAMBA, metadata.jamba, tensors=tensors.mamba),
    "lfm2": Conversion(gguf.MODEL_ARCH.LFM2, metadata.lfm2, tensors=tensors.lfm2),
    "lfm2 with biases": Conversion(gguf.MODEL_ARCH.LFM2, metadata.lfm2, tensors=tensors.lfm2),
    "lfm2_moe": Conversion(
        gguf.MODEL_ARCH.LFM2MOE,
        lambda config: (
            metadata.lfm2(config)
            | metadata.experts(config)
            | {"feed_forward_length": config.intermediate_size, "leading_dense_block_count": config.num_dense_layers}
        ),
        tensors=tensors.lfm2,
    ),
    "llama": Conversion(gguf.MODEL_ARCH.LLAMA, has_interleaved_heads=True),
    "llama4": Conversion(gguf.MODEL_ARCH.LLAMA4, metadata.llama4),
    "falcon_mamba": Conversion(gguf.MODEL_ARCH.MAMBA, metadata.mamba, tensors=tensors.mamba),
    "mamba": Conversion(gguf.MODEL_ARCH.MAMBA, metadata.mamba, tensors=tensors.mamba),
    "mamba with biases": Conversion(gguf.MODEL_ARCH.MAMBA, metadata.mamba, tensors=tensors.mamba),
    "mamba2": Conversion(
        gguf.MODEL_ARCH.MAMBA2, lambda config: metadata.ssm(config, config.num_heads * config.head_dim), tensors=tensors.mamba2
    ),
    "mamba2 with biases": Conversion(
        gguf.MODEL_ARCH.MAMBA2, lambda config: metadata.ssm(config, config.num_heads * config.head_dim), tensors=tensors.mamba2
    ),
    "ministral3": Conversion(gguf.MODEL_ARCH.MISTRAL3, metadata.ministral3, has_interleaved_heads=True),
    "mistral": Conversion(
        gguf.MODEL_ARCH.LLAMA, lambda config: {"attention.sliding_window": config.sliding_window}, has_interleaved_heads=True
    ),
    "mixtral": Conversion(
        gguf.MODEL_ARCH.LLAMA,
        lambda config: metadata.experts(config) | {"attention.sliding_window": config.sliding_window or 0},
        has_interleaved_heads=True,
    ),
    "mixtral of older files": Conversion(
        gguf.MODEL_ARCH.LLAMA,
        lambda config: metadata.experts(config) | {"attention.sliding_window": config.sliding_window or 0},
        has_interleaved_heads=True,
        tensors=tensors.experts_apart,
        model="mixtral",
    ),
    "mpt": Conversion(gguf.MODEL_ARCH.MPT, metadata.mpt),
    "mpt with bounds": Conversion(gguf.MODEL_ARCH.MPT, metadata.mpt),
    "nemotron": Conversion(gguf.MODEL_ARCH.NEMOTRON, metadata.turned, adds_one=True),
    "olmo2": Conversion(gguf.MODEL_ARCH.OLMO2),
    "olmo3": Conversion(gguf.MODEL_ARCH.OLMO2, metadata.windows),
    "olmoe": Conversion(gguf.MODEL_ARCH.OLMOE, metadata.experts),
    "phi": Conversion(gguf.MODEL_ARCH.PHI2, metadata.turned),
    "phi3": Conversion(
        gguf.MODEL_ARCH.PHI3, lambda config: metadata.turned(config) | {"attention.sliding_window": config.sliding_window or 0}
    ),
    "phi3 with long contexts": Conversion(
        gguf.MODEL_ARCH.PHI3, metadata.phi3_with_long_contexts, tensors=tensors.phi3_with_long_contexts
    ),
    "qwen2": Conversion(gguf.MODEL_ARCH.QWEN2),
    "qwen2_moe": Conversion(gguf.MODEL_ARCH.QWEN2MOE, metadata.experts),
    "qwen3": Conversion(gguf.MODEL_ARCH.QWEN3),
    "qwen3_moe": Conversion(gguf.MODEL_ARCH.QWEN3MOE, metadata.experts),
    "qwen3_5": Conversion(gguf.MODEL_ARCH.QWEN35, metadata.delta, adds_one=True, tensors=tensors.qwen3_5),
    "qwen3_5_moe": Conversion(
        gguf.MODEL_ARCH.QWEN35MOE,
        lambda config: metadata.delta(config) | metadata.experts(config),
        adds_one=True,
        tensors=tensors.qwen3_5,
    ),
    "qwen3_next": Conversion(
        gguf.MODEL_ARCH.QWEN3NEXT,
        lambda config: metadata.delta(config) | metadata.experts(config),
        adds_one=True,
        tensors=tensors.qwen3_next,
    ),
    "seed_oss": Conversion(gguf.MODEL_ARCH.SEED_OSS),
    "smollm3": Conversion(gguf.MODEL_ARCH.SMOLLM3, has_interleaved_heads=True),
    "starcoder2": Conversion(gguf.MODEL_ARCH.STARCODER2, lambda config: {"attention.sliding_window": config.sliding_window}),
}
"""Name of a tiny model, or of another architecture with its tensors -> its conversion."""


ADD = {
    bool: GGUFWriter.add_bool,
    float: GGUFWriter.add_float32,
    list: GGUFWriter.add_array,
    str: GGUFWriter.add_string,
}
KEPT = (".bias", "ffn_gate_inp.weight", "_norm.weight", "conv1d.weight", "conv.weight", "position_embd.weight")
"""Ends of names of tensors that are never quantized."""


def write_gguf(
    path: Path,
    name: str,
    model: torch.nn.Module,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    architecture: str = "",
    added: Mapping[str, Any] = MappingProxyType({}),
    added_tensors: Sequence[str] = (),
    mtp: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Write a tiny model; matrices whose rows are whole blocks are quantized to `kind`.

    Args:
        path: of the file.
        name: of the tiny model.
        model: transformers' own.
        kind: of matrices.
        architecture: GGUF's name, if not that of the conversion.
        added: metadata.
        added_tensors: names of tensors that the model does not have.
        mtp: further tensors of the last layer, which is an MTP layer, by their names in a checkpoint's layer.
    """
    conversion, config = CONVERSIONS[name], model.config
    writer = GGUFWriter(path, architecture or gguf.MODEL_ARCH_NAMES[conversion.architecture])
    predicting = {"nextn_predict_layers": 1} if mtp else {}
    for key, value in (_sizes(config) | dict(conversion.values(config)) | predicting | dict(added)).items():
        add = ADD.get(type(value), GGUFWriter.add_uint32)
        add(writer, f"{writer.arch}.{key}", value)
    names = gguf.get_tensor_name_map(conversion.architecture, config.num_hidden_layers)
    for key, tensor in conversion.tensors(config, _unfused(model.state_dict())).items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _converted(conversion, config, key, tensor).float().numpy()
        name = names.get_name(key, (".weight", ".bias")) or key
        is_quantized = values.ndim >= 2 and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        is_kept = name.endswith(KEPT)
        its_kind = kind if is_quantized and not is_kept else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), its_kind), raw_dtype=its_kind)
    of_mtp = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GLM4_MOE, config.num_hidden_layers)
    for key, tensor in mtp.items():
        its_name = of_mtp.get_name(f"model.layers.{config.num_hidden_layers - 1}.{key}", (".weight",))
        writer.add_tensor(its_name, tensor.float().numpy())
    for added_name in added_tensors:
        writer.add_tensor(added_name, np.ones(16, np.float32))
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
        is_llama4 = stem.endswith("feed_forward") and f"{stem}.shared_expert.up_proj.weight" in state
        tensor = stored.transpose(1, 2) if (is_gpt_oss or is_llama4) and kind == "weight" else stored
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
        "context_length": getattr(config, "max_position_embeddings", 1 << 20),
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": getattr(config, "num_attention_heads", 0),
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(
            config,
            "layer_norm_eps",
            getattr(config, "norm_eps", getattr(config, "norm_epsilon", getattr(config, "layer_norm_epsilon", None))),
        ),
        "rope.freq_base": (getattr(config, "rope_parameters", None) or {}).get("rope_theta"),
    }
    return {key: value for key, value in values.items() if value is not None}


def _converted(conversion: Conversion, config: Config, key: str, tensor: torch.Tensor) -> torch.Tensor:
    if conversion.adds_one and key.endswith("norm.weight") and "linear_attn" not in key:
        return tensor + 1
    kind = key.split(".")[-2]
    if kind not in ("q_proj", "k_proj") or not conversion.has_interleaved_heads:
        return tensor
    heads = config.num_attention_heads if kind == "q_proj" else config.num_key_value_heads
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
