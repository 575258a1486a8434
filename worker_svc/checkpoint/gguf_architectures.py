"""GGUF architectures: how GGUF files name the values and tensors of each family, as llama.cpp's converter writes them.

A family is described from config.json's form (families/registry.py), so the metadata is brought into that form; the names of
tensors are those of the file. The converter adds the 1 of norms that multiply by 1 + w, and for some architectures puts the two
rows of a rotated pair side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.llama import fused_gate_up, fused_qkv
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

Get = Callable[[str], Any]
"""Returns the value of a key of the architecture, or None."""
Fused = Callable[[ModelConfig, str], Mapping[str, Stored]]

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_NORMS_AFTER = {"self_attn.output_norm": "post_attention_norm", "mlp.output_norm": "post_ffw_norm"}
_MLP = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
_LLAMA = _NORMS | _ATTENTION | _HEAD_NORMS | _MLP
_PARTS = ("gate", "up", "down")
_EXPERTS = {
    "mlp.router": Stored("ffn_gate_inp"),
    "mlp.shared_expert_gate": Stored("ffn_gate_inp_shexp", is_row=True),
    **{f"mlp.shared_expert.{part}_proj": Stored(f"ffn_{part}_shexp") for part in _PARTS},
    # Older files have a tensor for each expert.
    **{
        f"mlp.experts.{{expert}}.{part}_proj": Stored(
            f"ffn_{part}_exps", is_stacked=True, otherwise=Stored(f"ffn_{part}.{{expert}}")
        )
        for part in _PARTS
    },
}
_IN_MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GEMMA2_LAYERS_27B, _GEMMA3_LAYERS_27B = 46, 62
"""Numbers of layers of the models whose attention is not scaled by the size of a head."""


def _nothing(get: Get) -> dict[str, Any]:  # noqa: ARG001 - one signature
    return {}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """An architecture by GGUF's name.

    Attributes:
        names: the architectures of Hugging Face that a file may be: the second one if all layers have a sliding window.
        mixture: the architecture of a file that has experts, where files without experts have the same name of GGUF's.
        knows_window: whether the family itself knows which layers have a window.
        config: values of config.json beyond those that all architectures have.
        in_layer: canonical names -> the file's, within a layer.
        fused: matrices that files have as one, or apart: the file's name -> function(config, that name).
        is_paired: whether rows of queries and keys that are rotated together lie side by side.
    """

    names: Sequence[str]
    knows_window: bool = False
    config: Callable[[Get], dict[str, Any]] = _nothing
    in_layer: Mapping[str, str] = field(default_factory=lambda: _LLAMA)
    fused: Mapping[str, Fused] = field(default_factory=dict)
    is_paired: bool = False
    mixture: str = ""


def _gemma(get: Get) -> dict[str, Any]:  # noqa: ARG001 - one signature
    return {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(get: Get) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(get, _GEMMA2_LAYERS_27B),
    }


def _gemma3(get: Get) -> dict[str, Any]:
    return {
        "final_logit_softcapping": get("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(get, _GEMMA3_LAYERS_27B),
        "rope_local_base_freq": get("rope.freq_base_swa"),
    }


def _query_scalar(get: Get, layers_27b: int) -> Any:
    if get("block_count") == layers_27b:
        return get("embedding_length") // get("attention.head_count")
    return get("attention.key_length")


def _granite(get: Get) -> dict[str, Any]:
    return {
        "attention_multiplier": get("attention.scale"),
        "embedding_multiplier": get("embedding_scale"),
        "residual_multiplier": get("residual_scale"),
        "logits_scaling": get("logit_scale"),
    }


def _experts(get: Get) -> dict[str, Any]:
    """Return the values of experts; older files have their size as that of all MLPs."""
    return {
        "num_local_experts": get("expert_count"),
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length") or get("feed_forward_length"),
        "shared_expert_intermediate_size": get("expert_shared_feed_forward_length"),
    }


def _llama(get: Get) -> dict[str, Any]:
    return _experts(get) if get("expert_count") else {}


def _qwen3_moe(get: Get) -> dict[str, Any]:
    return {**_experts(get), "norm_topk_prob": True}


def _granite_moe(get: Get) -> dict[str, Any]:
    if get("expert_shared_feed_forward_length"):
        raise ModelError("GGUF granitemoe with a shared expert is not supported.")
    return _granite(get) | _experts(get)


def _gpt_oss(get: Get) -> dict[str, Any]:
    scaling = {
        "rope_type": "yarn",
        "factor": get("rope.scaling.factor"),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        "truncate": False,
    }
    return {
        **_experts(get),
        "intermediate_size": get("expert_feed_forward_length"),
        "rope_scaling": scaling if get("rope.scaling.type") == "yarn" else None,
    }


def _layer_norm(get: Get) -> dict[str, Any]:
    return {"layer_norm_eps": get("attention.layer_norm_epsilon")} | _partial(get)


def _partial(get: Get) -> dict[str, Any]:
    """Return the share of a head that turns, if it is not all of it."""
    turned, head_dim = get("rope.dimension_count"), get("embedding_length") // get("attention.head_count")
    # The family rounds the product of share and size down: half a dimension more gives this number again.
    return {"partial_rotary_factor": (turned + 0.5) / head_dim} if turned and turned < head_dim else {}


ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "arcee": GgufArchitecture(("ArceeForCausalLM",), is_paired=True),
    "gemma": GgufArchitecture(("GemmaForCausalLM",), config=_gemma),
    "gemma2": GgufArchitecture(("Gemma2ForCausalLM",), True, _gemma2, _LLAMA | _NORMS_AFTER),
    "gemma3": GgufArchitecture(("Gemma3ForCausalLM",), True, _gemma3, _LLAMA | _NORMS_AFTER),
    "granite": GgufArchitecture(("GraniteForCausalLM",), config=_granite, is_paired=True),
    "gpt-oss": GgufArchitecture(
        ("GptOssForCausalLM",),
        True,
        _gpt_oss,
        _LLAMA | {"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks.weight"},
    ),
    "granitemoe": GgufArchitecture(("GraniteMoeForCausalLM",), config=_granite_moe, is_paired=True),
    "llama": GgufArchitecture(
        ("LlamaForCausalLM", "MistralForCausalLM"), config=_llama, is_paired=True, mixture="MixtralForCausalLM"
    ),
    "nemotron": GgufArchitecture(("NemotronForCausalLM",), config=_layer_norm),
    "olmo2": GgufArchitecture(("Olmo2ForCausalLM",), in_layer=_ATTENTION | _HEAD_NORMS | _MLP | _NORMS_AFTER),
    "olmoe": GgufArchitecture(("OlmoeForCausalLM",), config=_experts),
    "phi2": GgufArchitecture(("PhiForCausalLM",), config=_layer_norm, fused={"attn_qkv": fused_qkv}),
    "phi3": GgufArchitecture(("Phi3ForCausalLM",), True, _partial, fused={"attn_qkv": fused_qkv, "ffn_up": fused_gate_up}),
    "qwen2": GgufArchitecture(("Qwen2ForCausalLM",)),
    "qwen2moe": GgufArchitecture(("Qwen2MoeForCausalLM",), config=_experts),
    "qwen3": GgufArchitecture(("Qwen3ForCausalLM",)),
    "qwen3moe": GgufArchitecture(("Qwen3MoeForCausalLM",), config=_qwen3_moe),
    "seed_oss": GgufArchitecture(
        ("SeedOssForCausalLM",), in_layer=_LLAMA | {"post_attention_layernorm": "post_attention_norm"}
    ),
    "smollm3": GgufArchitecture(("SmolLM3ForCausalLM",), is_paired=True),
    "starcoder2": GgufArchitecture(("Starcoder2ForCausalLM",), True, _layer_norm),
}
"""GGUF's name -> the architecture."""


def architecture_of(name: object) -> GgufArchitecture:
    """Return the architecture of a file's `general.architecture`; ModelError if it is not known."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"GGUF architecture {str(name)[:80]!r} is not supported; supported: {supported}.")
    return ARCHITECTURES[name]


def tensor_names(architecture: str, config: ModelConfig, has: Callable[[str], bool]) -> TensorNames:
    """Return where a file of an architecture has the canonical tensors of a model; `has` tells whether it has a tensor."""
    known = architecture_of(architecture)
    in_layer = {name: Stored(stored) for name, stored in known.in_layer.items()}
    if any(layer.experts for layer in config.layers):
        in_layer |= _EXPERTS
    if known.is_paired:
        for name in ("self_attn.q_proj", "self_attn.k_proj"):
            in_layer[name] = Stored(in_layer[name].name, paired=(config.head_dim, config.head_dim))
    for name, find in known.fused.items():
        if has(f"blk.0.{name}.weight"):
            in_layer |= find(config, name)
    return TensorNames(layers="blk", in_layer=in_layer, in_model={name: Stored(stored) for name, stored in _IN_MODEL.items()})
