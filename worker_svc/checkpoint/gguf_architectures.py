"""GGUF architectures: the names of each family's values and tensors in GGUF files, as llama.cpp's converter writes them.

Families read their description from config.json's form (families/registry.py), so the metadata is converted to that form
(gguf_configs.py, gguf_state_configs.py); the names of tensors are those of the file. The converter adds 1 to norms that
multiply by 1 + w, stores -exp of the decays of states, and for some architectures places the two rows of a rotated pair side
by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint import gguf_configs as configs
from tetrad.worker_svc.checkpoint import gguf_state_configs as state_configs
from tetrad.worker_svc.checkpoint.gguf_facts import Facts
from tetrad.worker_svc.families.llama import fused_gate_up, fused_qkv
from tetrad.worker_svc.families.states import fused_parts, parts_by_heads, step_names
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.states import GatedDeltaRule, State
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

Fused = Callable[[ModelConfig, str], Mapping[str, Stored]]

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_NORMS_AFTER = {"self_attn.output_norm": "post_attention_norm", "mlp.output_norm": "post_ffw_norm"}
_MLP = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
_LLAMA = _NORMS | _ATTENTION | _HEAD_NORMS | _MLP
_POST_NORM = _ATTENTION | _HEAD_NORMS | _MLP | _NORMS_AFTER
_LLAMA_WITHOUT_HEAD_NORMS = _NORMS | _ATTENTION | _MLP
_NORM_BEHIND_ATTENTION = _LLAMA | {"post_attention_layernorm": "post_attention_norm"}
_LFM2_NORM = {"model.norm": "token_embd_norm"}
_LATENT = (
    _NORMS
    | _MLP
    | {
        "self_attn.q_proj": "attn_q",
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",  # split in newer files: split_latents.py
        "self_attn.o_proj": "attn_output",
    }
)
_PARTS = ("gate", "up", "down")
_EXPERTS = {
    "mlp.router": Stored("ffn_gate_inp"),
    "mlp.router_correction": Stored("exp_probs_b.bias"),
    "mlp.shared_expert_gate": Stored("ffn_gate_inp_shexp", is_row=True),
    **{f"mlp.shared_expert.{part}_proj": Stored(f"ffn_{part}_shexp") for part in _PARTS},
    # Older files have separate tensors for each expert.
    **{
        f"mlp.experts.{{expert}}.{part}_proj": Stored(
            f"ffn_{part}_exps", is_stacked=True, otherwise=Stored(f"ffn_{part}.{{expert}}")
        )
        for part in _PARTS
    },
}
_MTP = {name: f"nextn.{name}" for name in ("eh_proj", "enorm", "hnorm", "embed_tokens")}
_MTP |= {f"shared_head.{name}": f"nextn.shared_head_{name}" for name in ("head", "norm")}
_IN_MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """The properties of one of GGUF's architectures.

    Attributes:
        names: the possible architectures of Hugging Face; the second one applies if all layers have a sliding window.
        mixture: the architecture of Hugging Face for files with experts, if GGUF has the same name for files without experts.
        knows_window: whether the family determines the layers with a window.
        config: returns values of config.json in addition to those of all architectures.
        in_layer: canonical names -> names in the file, within a layer.
        in_model: canonical names -> names in the file, for the whole model.
        fused: matrices that are fused in some files and separate in others: name in the file -> function(config, that name).
        others: returns names within a layer that depend on the model's sizes.
        is_paired: whether rows of queries and keys that are rotated together are side by side.
    """

    names: Sequence[str]
    knows_window: bool = False
    config: Callable[[Facts], dict[str, Any]] = configs.nothing
    in_layer: Mapping[str, str] = field(default_factory=lambda: _LLAMA)
    in_model: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, Fused] = field(default_factory=dict)
    others: Callable[[ModelConfig], Mapping[str, Stored]] = lambda _: {}
    is_paired: bool = False
    mixture: str = ""


def _head_norms_of_all(config: ModelConfig) -> dict[str, Stored]:
    """Return the norms of heads with one row of weights for each head, whose rotated pairs are side by side."""
    pairs = (config.head_dim, config.head_dim)
    return {name: Stored(stored, is_flat=True, paired=pairs) for name, stored in _HEAD_NORMS.items()}


def _qkv(config: ModelConfig) -> dict[str, Stored]:
    return fused_qkv(config, "attn_qkv")


def _falcon(config: ModelConfig) -> dict[str, Stored]:
    """Return the names of Falcon; where each branch has a norm, the first one in the file is that of the MLP."""
    norms = {"input_layernorm": Stored("attn_norm_2"), "post_attention_layernorm": Stored("attn_norm")}
    return _qkv(config) | ({} if config.is_norm_shared else norms)


def _state_of(config: ModelConfig) -> State:
    state = next((layer.state for layer in config.layers if layer.state), None)
    if state is None:
        raise ModelError(
            f"The metadata names no layer of {config.architecture[:80]} with a state, so the file is not supported."
        )
    return state


def _short_convolution(config: ModelConfig) -> dict[str, Stored]:
    return {
        "mixer.conv": Stored("shortconv.conv", is_flat=True),
        "mixer.out_proj": Stored("shortconv.out_proj"),
        **fused_parts("shortconv.in_proj", _state_of(config).parts),
    }


_SELECTION = {
    "mixer.x_proj": Stored("ssm_x"),
    **step_names("ssm_dt"),
    **{f"mixer.{name}_layernorm": Stored(f"ssm_{name}_norm") for name in ("dt", "b", "c")},
}
_SSM = {
    "mixer.conv": Stored("ssm_conv1d", is_flat=True),
    "mixer.dt_bias": Stored("ssm_dt.bias"),
    "mixer.A_log": Stored("ssm_a", is_flat=True, is_decay=True),
    "mixer.D": Stored("ssm_d", is_flat=True),
    "mixer.norm": Stored("ssm_norm", is_flat=True),
    "mixer.out_proj": Stored("ssm_out"),
}


def _mamba2(config: ModelConfig) -> dict[str, Stored]:
    return _SSM | fused_parts("ssm_in", _state_of(config).parts)


def _mamba(config: ModelConfig) -> dict[str, Stored]:
    return _mamba2(config) | _SELECTION


def _falcon_h1(config: ModelConfig) -> dict[str, Stored]:
    return _mamba2(config) | {"post_attention_layernorm.weight": Stored("ffn_norm")}


def _gated_delta(config: ModelConfig) -> dict[str, Stored]:
    """Return the names of gated delta nets, and of attention whose query matrix has the gate's rows after each head's rows."""
    state, heads, dim = _state_of(config), config.num_heads, config.head_dim
    assert isinstance(state, GatedDeltaRule)
    mixed = {name: state.parts[name] for name in ("in_query_proj", "in_key_proj", "in_value_proj")}
    return {
        **_SSM,
        **fused_parts("attn_qkv", mixed),
        "mixer.in_gate_proj": Stored("attn_gate"),
        "mixer.in_beta_proj": Stored("ssm_beta"),
        "mixer.in_decay_proj": Stored("ssm_alpha"),
        "self_attn.q_proj": Stored("attn_q", rows=Rows(heads, 2 * dim, 0, dim)),
        "self_attn.output_gate_proj": Stored("attn_q", rows=Rows(heads, 2 * dim, dim, 2 * dim)),
    }


def _qwen3_next(config: ModelConfig) -> dict[str, Stored]:
    state = _state_of(config)
    assert isinstance(state, GatedDeltaRule)
    shared = state.num_value_heads // state.num_key_heads
    parts = {"in_beta_proj": shared, "in_decay_proj": shared}
    return _gated_delta(config) | parts_by_heads("ssm_ba", parts, state.num_key_heads)


ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "arcee": GgufArchitecture(("ArceeForCausalLM",), is_paired=True),
    "bloom": GgufArchitecture(
        ("BloomForCausalLM",), config=configs.layer_norm, in_model={"model.embed_norm": "token_embd_norm"}, others=_qkv
    ),
    "cohere2": GgufArchitecture(("Cohere2ForCausalLM",), True, configs.cohere2, _LLAMA_WITHOUT_HEAD_NORMS, is_paired=True),
    "command-r": GgufArchitecture(("CohereForCausalLM",), config=configs.cohere, others=_head_norms_of_all, is_paired=True),
    "deepseek2": GgufArchitecture(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), True, configs.deepseek2, _LATENT),
    "exaone": GgufArchitecture(("ExaoneForCausalLM",), config=configs.exaone),
    "exaone4": GgufArchitecture(("Exaone4ForCausalLM",), True, configs.windows, _POST_NORM),
    "falcon": GgufArchitecture(("FalconForCausalLM",), config=configs.falcon, others=_falcon),
    "falcon-h1": GgufArchitecture(("FalconH1ForCausalLM",), config=state_configs.falcon_h1, others=_falcon_h1),
    "gemma": GgufArchitecture(("GemmaForCausalLM",), config=configs.gemma),
    "gemma2": GgufArchitecture(("Gemma2ForCausalLM",), True, configs.gemma2, _LLAMA | _NORMS_AFTER),
    "gemma3": GgufArchitecture(("Gemma3ForCausalLM",), True, configs.gemma3, _LLAMA | _NORMS_AFTER),
    "glm4": GgufArchitecture(
        ("Glm4ForCausalLM",),
        config=configs.glm4,
        in_layer=_LLAMA | _NORMS_AFTER,
        fused={"ffn_up": fused_gate_up},
        is_paired=True,
    ),
    "glm4moe": GgufArchitecture(("Glm4MoeForCausalLM",), config=configs.glm4_moe, in_layer=_NORM_BEHIND_ATTENTION),
    "gpt2": GgufArchitecture(
        ("GPT2LMHeadModel",), config=configs.layer_norm, in_model={"model.embed_positions": "position_embd"}, others=_qkv
    ),
    "gptneox": GgufArchitecture(("GPTNeoXForCausalLM",), config=configs.gpt_neox, others=_qkv),
    "granite": GgufArchitecture(("GraniteForCausalLM",), config=configs.granite, is_paired=True),
    "gpt-oss": GgufArchitecture(
        ("GptOssForCausalLM",),
        True,
        configs.gpt_oss,
        _LLAMA | {"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks.weight"},
    ),
    "granitemoe": GgufArchitecture(("GraniteMoeForCausalLM",), config=configs.granite_moe, is_paired=True),
    "granitehybrid": GgufArchitecture(
        ("GraniteMoeHybridForCausalLM",), config=state_configs.granite_hybrid, others=_mamba2, is_paired=True
    ),
    "jamba": GgufArchitecture(("JambaForCausalLM",), config=state_configs.jamba, others=_mamba),
    "lfm2": GgufArchitecture(("Lfm2ForCausalLM",), config=state_configs.lfm2, in_model=_LFM2_NORM, others=_short_convolution),
    "lfm2moe": GgufArchitecture(
        ("Lfm2MoeForCausalLM",), config=state_configs.lfm2_moe, in_model=_LFM2_NORM, others=_short_convolution
    ),
    "llama": GgufArchitecture(
        ("LlamaForCausalLM", "MistralForCausalLM"), config=configs.llama, is_paired=True, mixture="MixtralForCausalLM"
    ),
    "llama4": GgufArchitecture(("Llama4ForCausalLM",), True, configs.llama4, _LLAMA_WITHOUT_HEAD_NORMS, is_paired=True),
    "mamba": GgufArchitecture(("MambaForCausalLM", "FalconMambaForCausalLM"), config=state_configs.mamba, others=_mamba),
    "mamba2": GgufArchitecture(("Mamba2ForCausalLM",), config=state_configs.mamba2, others=_mamba2),
    "mistral3": GgufArchitecture(("Ministral3ForCausalLM", "MistralForCausalLM"), True, configs.mistral3, is_paired=True),
    "mpt": GgufArchitecture(("MptForCausalLM",), config=configs.mpt, others=_qkv),
    "nemotron": GgufArchitecture(("NemotronForCausalLM",), config=configs.layer_norm),
    "olmo2": GgufArchitecture(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), True, configs.olmo2, _POST_NORM),
    "olmoe": GgufArchitecture(("OlmoeForCausalLM",), config=configs.experts),
    "phi2": GgufArchitecture(("PhiForCausalLM",), config=configs.layer_norm, fused={"attn_qkv": fused_qkv}),
    "phi3": GgufArchitecture(
        ("Phi3ForCausalLM",), True, configs.partial_rotation, fused={"attn_qkv": fused_qkv, "ffn_up": fused_gate_up}
    ),
    "qwen2": GgufArchitecture(("Qwen2ForCausalLM",)),
    "qwen2moe": GgufArchitecture(("Qwen2MoeForCausalLM",), config=configs.experts),
    "qwen3": GgufArchitecture(("Qwen3ForCausalLM",)),
    "qwen3moe": GgufArchitecture(("Qwen3MoeForCausalLM",), config=configs.qwen3_moe),
    "qwen35": GgufArchitecture(
        ("Qwen3_5ForCausalLM",), config=state_configs.qwen3_5, in_layer=_NORM_BEHIND_ATTENTION, others=_gated_delta
    ),
    "qwen35moe": GgufArchitecture(
        ("Qwen3_5MoeForCausalLM",), config=state_configs.qwen3_5_moe, in_layer=_NORM_BEHIND_ATTENTION, others=_gated_delta
    ),
    "qwen3next": GgufArchitecture(
        ("Qwen3NextForCausalLM",), config=state_configs.qwen3_next, in_layer=_NORM_BEHIND_ATTENTION, others=_qwen3_next
    ),
    "seed_oss": GgufArchitecture(("SeedOssForCausalLM",), in_layer=_NORM_BEHIND_ATTENTION),
    "smollm3": GgufArchitecture(("SmolLM3ForCausalLM",), is_paired=True),
    "starcoder2": GgufArchitecture(("Starcoder2ForCausalLM",), True, configs.layer_norm),
}
"""GGUF's name of an architecture -> its properties."""


def architecture_of(name: object) -> GgufArchitecture:
    """Return the architecture for a file's `general.architecture`; raise ModelError if it is unknown."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"GGUF architecture {str(name)[:80]!r} is not supported; supported: {supported}.")
    return ARCHITECTURES[name]


def tensor_names(architecture: str, config: ModelConfig, num_mtp_layers: int, has: Callable[[str], bool]) -> TensorNames:
    """Return the names of a model's canonical tensors in a file.

    Args:
        architecture: GGUF's name of the architecture.
        config: the model's description.
        num_mtp_layers: number of layers after the last one, which predict several tokens; the first one may draft.
        has: returns whether the file has a tensor.
    """
    known = architecture_of(architecture)
    in_layer = {name: Stored(stored) for name, stored in {**known.in_layer, **_MTP}.items()}
    if any(layer.experts for layer in config.layers):
        in_layer |= _EXPERTS
    in_layer |= known.others(config)
    if known.is_paired:
        turned = next((rope.dim for rope in config.ropes if rope), config.head_dim)
        for name in ("self_attn.q_proj", "self_attn.k_proj"):
            in_layer[name] = Stored(in_layer[name].name, paired=(config.head_dim, turned))
    for name, find in known.fused.items():
        if has(f"blk.0.{name}.weight"):
            in_layer |= find(config, name)
    in_model = {name: Stored(stored) for name, stored in {**_IN_MODEL, **known.in_model}.items()}
    unused = tuple(f"blk.{config.num_layers + index}." for index in range(num_mtp_layers))
    return TensorNames(layers="blk", in_layer=in_layer, in_model=in_model, unused_layers=unused)
