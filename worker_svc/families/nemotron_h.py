"""Nemotron-H and Nemotron 3: a layer is either Mamba2, attention without rotary embeddings, an MLP or a mixture of experts."""

from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import ACTIVATIONS, decoder
from tetrad.worker_svc.families.states import check_silu, mixer_names
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import Experts, LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import Mamba2
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of hybrid_override_pattern, which has one letter per layer -> kinds of layers."""
_KINDS = {"linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention", "attention": "attention"}
_KINDS |= {"mlp": "mlp", "moe": "moe"}


def nemotron_h(values: Values) -> ModelConfig:
    """Describe Nemotron-H and Nemotron 3 Nano."""
    kinds, state = _kinds(values), _state(values)
    activation = values.choose("mlp_hidden_act", known=ACTIVATIONS, default="relu2")
    config = decoder(values, kinds=[FULL] * len(kinds), default_activation=activation, is_gated=False)
    size = config.layers[0].intermediate_size
    made: dict[str, LayerConfig] = {
        "mamba": LayerConfig(None, None, 0, state=state, has_attention=False, has_mlp=False),
        "attention": LayerConfig(None, None, 0, has_mlp=False),
        "mlp": LayerConfig(None, None, size, has_attention=False),
    }
    values.ignore("n_routed_experts")  # has no effect in a model without expert layers
    if "moe" in kinds:
        made |= {"moe": LayerConfig(None, None, size, experts=_experts(values), has_attention=False)}
    return replace(
        config,
        layers=tuple(made[kind] for kind in kinds),
        tie_word_embeddings=False,
        biases=_biases(values, state),
        tensors=TensorNames(
            prefixes=("backbone.", "model.", ""),  # transformers' model calls "model." what files call "backbone."
            layers="layers",
            in_layer=_names(state),
            in_model={"model.embed_tokens": Stored("embeddings"), "model.norm": Stored("norm_f")},
        ),
    )


def _kinds(values: Values) -> list[str]:
    pattern, listed = values.get("hybrid_override_pattern"), values.get("layers_block_type", "layer_types")
    names, known = (list(pattern), _LETTERS) if listed is None and pattern else (list(listed or ()), _KINDS)
    unknown = sorted({str(name) for name in names} - set(known))
    if unknown or not names:
        key = "hybrid_override_pattern" if known is _LETTERS else "layers_block_type"
        raise ModelError(
            f"The model's config has {key} with {', '.join(unknown)[:80] or 'no layers'}; supported: {', '.join(known)}."
        )
    return [known[name] for name in names]


def _state(values: Values) -> Mamba2:
    check_silu(values, "mamba_hidden_act")
    return Mamba2(
        num_heads=int(values.need("mamba_num_heads")),
        head_dim=int(values.need("mamba_head_dim")),
        state_dim=int(values.need("ssm_state_size")),
        num_groups=int(values.get("n_groups", "mamba_n_groups", default=8)),
        kernel=int(values.get("conv_kernel", "mamba_d_conv", default=4)),
        min_step=float(values.get("time_step_min", "mamba_dt_min", default=0.001)),
    )


def _experts(values: Values) -> Experts:
    if values.get("moe_latent_size") is not None:
        raise ModelError(f"The model's config has moe_latent_size {values.get('moe_latent_size')}, which is not supported.")
    return Experts(
        num_experts=int(values.need("n_routed_experts", "num_local_experts")),
        num_chosen=int(values.need("num_experts_per_tok")),
        intermediate_size=int(values.need("moe_intermediate_size")),
        router="grouped_sigmoid",
        is_renormalized=bool(values.get("norm_topk_prob", default=True)),
        scale=float(values.get("routed_scaling_factor", default=1.0)),
        num_groups=int(values.get("n_group", default=1)),
        num_chosen_groups=int(values.get("topk_group", default=1)),
        shared_size=int(values.need("moe_shared_expert_intermediate_size")),
    )


def _biases(values: Values, state: Mamba2) -> frozenset[str]:
    biases = {"conv"} if values.get("use_conv_bias", "mamba_conv_bias", default=True) else set()
    biases |= {*state.parts, "out_proj"} if values.get("use_bias", default=False) else set()
    biases |= {"up_proj", "down_proj"} if values.get("mlp_bias", default=False) else set()
    values.ignore("attention_bias")  # transformers' attention has no biases, whatever the config says
    return frozenset(biases)


def _names(state: Mamba2) -> dict[str, Stored]:
    names = mixer_names("mixer", state) | {"input_layernorm": Stored("norm"), "post_attention_layernorm": Stored("norm")}
    names |= {f"self_attn.{part}_proj": Stored(f"mixer.{part}_proj") for part in "qkvo"}
    names |= {"mlp.router": Stored("mixer.gate"), "mlp.router_correction": Stored("mixer.gate.e_score_correction_bias")}
    for part in ("up_proj", "down_proj"):
        names[f"mlp.{part}"] = Stored(f"mixer.{part}")
        names[f"mlp.experts.{{expert}}.{part}"] = Stored(f"mixer.experts.{{expert}}.{part}")
        names[f"mlp.shared_expert.{part}"] = Stored(f"mixer.shared_experts.{part}")
    return names
