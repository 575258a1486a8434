"""Families with Mamba layers of the first version: only these (Mamba, Falcon Mamba), or attention in other layers (Jamba)."""

from collections.abc import Sequence
from dataclasses import replace

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.states import attention_layers, check_silu, mixer_names, states_alone, step_names, with_states
from tetrad.worker_svc.families.values import FULL, Values
from tetrad.worker_svc.model_facts.config import Experts, LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import Mamba1, SelectionNorm
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_JAMBA_POSITIONS = 1 << 18
"""Largest number of tokens in a sequence of a Jamba whose config does not say."""
_CHANNELS_PER_RANK = 16
"""Number of hidden values for each of the values that time steps are made of, if the config does not say."""


def mamba(values: Values) -> ModelConfig:
    """Describe Mamba."""
    return _states_alone(values)


def falcon_mamba(values: Values) -> ModelConfig:
    """Describe Falcon Mamba: time steps, B and C have norms without weights."""
    return _states_alone(values, norm="unit", norm_eps=float(values.get("mixer_rms_eps", default=1e-6)))


def jamba(values: Values) -> ModelConfig:
    """Describe Jamba: attention without rotary embeddings in some layers, Mamba in the others, experts in every second one."""
    check_silu(values, "hidden_act")
    number = values.num_layers()
    config = decoder(values, kinds=[FULL] * number, rope_kinds=(), default_positions=_JAMBA_POSITIONS)
    state = Mamba1(
        size=int(values.get("mamba_expand", default=2)) * config.hidden_size,
        state_dim=int(values.get("mamba_d_state", default=16)),
        step_rank=_step_rank(values, "mamba_dt_rank", config.hidden_size),
        kernel=int(values.get("mamba_d_conv", default=4)),
        selection_norm="weighted",
        norm_eps=config.norm_eps,
    )
    biases = {"conv"} if values.get("mamba_conv_bias", default=True) else set()
    if values.get("mamba_proj_bias", default=False):
        biases |= {*state.parts, "out_proj"}
    have_attention = attention_layers(values, _every(values, "attn_layer", number, period=8, offset=4))
    names = _names("mamba", state) | {"post_attention_layernorm": Stored("pre_ff_layernorm")}
    names["mlp.router"] = Stored("feed_forward.router")
    for part in ("gate_proj", "up_proj", "down_proj"):
        names[f"mlp.{part}"] = Stored(f"feed_forward.{part}")
        names[f"mlp.experts.{{expert}}.{part}"] = Stored(f"feed_forward.experts.{{expert}}.{part}")
    return with_states(
        replace(config, layers=_with_experts(values, config.layers)),
        state,
        have_attention,
        biases=config.biases | biases,
        tensors=TensorNames(in_layer=names, in_model={"model.norm": Stored("model.final_layernorm")}),
    )


def _with_experts(values: Values, layers: Sequence[LayerConfig]) -> tuple[LayerConfig, ...]:
    """Return Jamba's layers with experts; GGUF files say how many each layer has, other files where they are."""
    number = int(values.get("num_experts", "num_local_experts", default=16))
    have_experts = _every(values, "expert_layer", len(layers), period=2, offset=1)
    numbers = values.get("layers_num_experts", default=[number if has_experts else 1 for has_experts in have_experts])
    made = []
    for layer, its_number in zip(layers, numbers, strict=True):
        experts = Experts(
            num_experts=int(its_number),
            num_chosen=int(values.get("num_experts_per_tok", default=2)),
            intermediate_size=layer.intermediate_size,
            is_renormalized=False,
        )
        made.append(replace(layer, experts=experts) if its_number > 1 else layer)
    return tuple(made)


def _every(values: Values, name: str, number: int, *, period: int, offset: int) -> list[bool]:
    """Return whether each layer is at the place in its period that the config has, in periods of the length that it has."""
    period = int(values.get(f"{name}_period", default=period))
    offset = int(values.get(f"{name}_offset", default=offset))
    return [index % period == offset for index in range(number)]


def _states_alone(values: Values, norm: SelectionNorm = "none", norm_eps: float = 0.0) -> ModelConfig:
    check_silu(values, "hidden_act")
    hidden = int(values.need("hidden_size"))
    state = Mamba1(
        size=int(values.get("intermediate_size") or float(values.get("expand", default=2)) * hidden),
        state_dim=int(values.get("state_size", default=16)),
        step_rank=_step_rank(values, "time_step_rank", hidden),
        kernel=int(values.get("conv_kernel", default=4)),
        selection_norm=norm,
        norm_eps=norm_eps,
    )
    eps = float(values.get("layer_norm_epsilon", default=1e-5))
    return states_alone(values, state, _names("mixer", state), norm_eps=eps, is_tied=True)


def _step_rank(values: Values, key: str, hidden: int) -> int:
    rank = values.get(key, default="auto")
    return -(-hidden // _CHANNELS_PER_RANK) if rank == "auto" else int(rank)


def _names(prefix: str, state: Mamba1) -> dict[str, Stored]:
    """Return the stored names of a Mamba layer's tensors."""
    selection = ("x_proj", "dt_layernorm", "b_layernorm", "c_layernorm")
    return {
        **mixer_names(prefix, state),
        **{f"mixer.{name}": Stored(f"{prefix}.{name}") for name in selection},
        **step_names(f"{prefix}.dt_proj"),
        "mixer.A_log": Stored(f"{prefix}.A_log", is_flat=True),
    }
