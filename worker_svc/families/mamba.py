"""Families with Mamba2 layers: only these, or attention in other layers (Granite 4, Bamba) or in the same (Falcon-H1)."""

from dataclasses import replace
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.experts import granite_experts
from tetrad.worker_svc.families.llama import granite
from tetrad.worker_svc.families.states import attention_layers, check_silu, fused_parts, mixer_names, states_alone, with_states
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.states import GatedNorm, Mamba2
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_MULTIPLIERS = ("in_gate_proj", "in_x_proj", "in_b_proj", "in_c_proj", "in_step_proj")
"""The parts that the numbers of Falcon-H1's ssm_multipliers multiply, in order."""


def mamba2(values: Values) -> ModelConfig:
    """Describe Mamba2 and Codestral Mamba."""
    check_silu(values, "hidden_act")
    min_step, max_step = _step_limits(values)
    state = Mamba2(
        num_heads=int(values.need("num_heads")),
        head_dim=int(values.need("head_dim")),
        state_dim=int(values.need("state_size")),
        num_groups=int(values.get("n_groups", default=8)),
        kernel=int(values.get("conv_kernel", default=4)),
        min_step=min_step,
        max_step=max_step,
    )
    eps = float(values.need("layer_norm_epsilon"))
    return states_alone(values, state, mixer_names("mixer", state), norm_eps=eps, is_tied=False)


def granite_hybrid(values: Values) -> ModelConfig:
    """Describe Granite 4: layers of Mamba2 or attention, an MLP with or without experts, optional rotary embeddings."""
    config, state = granite(values, kinds=[FULL] * values.num_layers()), _state(values)
    if values.get("position_embedding_type") != "rope":
        config = replace(config, layers=tuple(replace(layer, rope=None) for layer in config.layers))
    shared = int(values.get("shared_intermediate_size", default=1024))
    num_experts = int(values.get("num_local_experts", default=8))
    names = mixer_names("mamba", state)
    if num_experts:
        config = granite_experts(config, values, shared_size=shared)
    else:
        config = replace(config, layers=tuple(replace(layer, intermediate_size=shared) for layer in config.layers))
    mlp = "mlp.shared_expert" if num_experts else "mlp"
    names |= {
        f"{mlp}.gate_proj": Stored("shared_mlp.input_linear", rows=Rows(1, 2 * shared, 0, shared)),
        f"{mlp}.up_proj": Stored("shared_mlp.input_linear", rows=Rows(1, 2 * shared, shared, 2 * shared)),
        f"{mlp}.down_proj": Stored("shared_mlp.output_linear"),
    }
    return with_states(
        config,
        state,
        attention_layers(values, [False] * config.num_layers),
        biases=config.biases | _biases(values, state),
        tensors=replace(config.tensors, in_layer=dict(config.tensors.in_layer) | names),
    )


def bamba(values: Values) -> ModelConfig:
    """Describe Bamba: Mamba2 layers, and a few attention layers with rotary embeddings on half of a head."""
    config = decoder(values, kinds=[FULL] * values.num_layers(), rope={"share": 0.5})
    state, with_attention = _state(values), set(values.get("attn_layer_indices", default=()))
    names = mixer_names("mamba", state) | {"post_attention_layernorm": Stored("pre_ff_layernorm")}
    names |= {f"mlp.{part}_proj": Stored(f"feed_forward.{part}_proj") for part in ("gate", "up", "down")}
    return with_states(
        config,
        state,
        [index in with_attention for index in range(config.num_layers)],
        biases=config.biases | _biases(values, state),
        tensors=TensorNames(in_layer=names, in_model={"model.norm": Stored("model.final_layernorm")}),
    )


def falcon_h1(values: Values) -> ModelConfig:
    """Describe Falcon-H1: attention and Mamba2 read the same norm, their outputs are added; every product has a multiplier."""
    config = decoder(values, kinds=[FULL] * values.num_layers())
    norm: GatedNorm = "none"
    if values.get("mamba_rms_norm", default=False):
        norm = "before_gate" if values.get("mamba_norm_before_gate", default=True) else "after_gate"
    state = _state(values, gated_norm=norm)
    into, out_of, key, state_into, state_out_of = (
        float(values.get(name, default=1.0))
        for name in (
            "attention_in_multiplier",
            "attention_out_multiplier",
            "key_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        )
    )
    gate, down = map(float, values.get("mlp_multipliers", default=(1.0, 1.0)))
    of_parts = dict(zip(_MULTIPLIERS, map(float, values.get("ssm_multipliers", default=(1.0,) * 5)), strict=True))
    biases = config.biases | _biases(values, state, output="projectors_bias")
    if ("q_proj" in biases and into != 1) or ("in_x_proj" in biases and state_into != 1):
        raise ModelError("The model's config has multipliers of inputs beside biases, which is not supported.")
    names = mixer_names("mamba", state) | fused_parts(
        "mamba.in_proj", state.parts, {part: state_into * times for part, times in of_parts.items()}
    )
    names |= {
        "mixer.out_proj": Stored("mamba.out_proj", times=state_out_of),
        "self_attn.q_proj": Stored("self_attn.q_proj", times=into),
        "self_attn.k_proj": Stored("self_attn.k_proj", times=into * key),
        "self_attn.v_proj": Stored("self_attn.v_proj", times=into),
        "self_attn.o_proj": Stored("self_attn.o_proj", times=out_of),
        "mlp.gate_proj": Stored("feed_forward.gate_proj", times=gate),
        "mlp.up_proj": Stored("feed_forward.up_proj"),
        "mlp.down_proj": Stored("feed_forward.down_proj", times=down),
        "post_attention_layernorm": Stored("pre_ff_layernorm"),
    }
    return replace(
        config,
        layers=tuple(replace(layer, state=state) for layer in config.layers),
        embedding_multiplier=float(values.get("embedding_multiplier", default=1.0)),
        logit_multiplier=float(values.get("lm_head_multiplier", default=1.0)),
        biases=biases,
        tensors=TensorNames(in_layer=names, in_model={"model.norm": Stored("model.final_layernorm")}),
    )


def _state(values: Values, gated_norm: GatedNorm = "after_gate") -> Mamba2:
    """Return the description of the state layers in a model that also has attention."""
    check_silu(values, "hidden_act")
    min_step, max_step = _step_limits(values)
    num_heads = int(values.get("mamba_n_heads", default=128))
    size = int(values.get("mamba_d_ssm", default=int(values.get("mamba_expand", default=2)) * int(values.need("hidden_size"))))
    head_dim = values.get("mamba_d_head", default="auto")
    state = Mamba2(
        num_heads=num_heads,
        head_dim=size // num_heads if head_dim == "auto" else int(head_dim),
        state_dim=int(values.get("mamba_d_state", default=256)),
        num_groups=int(values.get("mamba_n_groups", default=1)),
        kernel=int(values.get("mamba_d_conv", default=4)),
        gated_norm=gated_norm,
        min_step=min_step,
        max_step=max_step,
    )
    if state.size != size:
        raise ModelError(f"The model's config is impossible: {num_heads} heads of {head_dim} make no state layer of {size}.")
    return state


def _biases(values: Values, state: Mamba2, output: str = "mamba_proj_bias") -> frozenset[str]:
    """Return the names of a state layer's tensors with biases; `output`: the config's key for the bias of its last product."""
    biases = {"conv"} if values.get("mamba_conv_bias", default=True) else set()
    biases |= set(state.parts) if values.get("mamba_proj_bias", default=False) else set()
    return frozenset(biases | ({"out_proj"} if values.get(output, default=False) else set()))


def _step_limits(values: Values) -> tuple[float, float]:
    least, most = values.get("time_step_limit", default=(0.0, float("inf")))
    return _number(least), _number(most)


def _number(value: Any) -> float:
    """Return a number of a config, where transformers writes infinity as {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, dict) else value)
