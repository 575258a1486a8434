"""Families with Mamba layers of the first version: only these (Mamba, Falcon Mamba), or attention in other layers (Jamba)."""

from tetrad.worker_svc.families.states import check_silu, mixer_names, step_names
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import Mamba1, SelectionNorm
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_LONGEST = 1 << 17
"""Largest number of tokens in a sequence if the config sets no limit; the size of a state does not depend on it."""
_CHANNELS_PER_RANK = 16
"""Number of hidden values for each of the values that time steps are made of, if the config does not say."""


def mamba(values: Values) -> ModelConfig:
    """Describe Mamba."""
    return _states_alone(values)


def falcon_mamba(values: Values) -> ModelConfig:
    """Describe Falcon Mamba: time steps, B and C have norms without weights."""
    return _states_alone(values, norm="unit", norm_eps=float(values.get("mixer_rms_eps", default=1e-6)))


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
    biases = {"conv"} if values.get("use_conv_bias", default=True) else set()
    if values.get("use_bias", default=False):
        biases |= {*state.parts, "out_proj"}
    return ModelConfig(
        architecture=values.architecture,
        vocab_size=int(values.need("vocab_size")),
        hidden_size=hidden,
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        norm_eps=float(values.get("layer_norm_epsilon", default=1e-5)),
        max_position_embeddings=int(values.get("max_position_embeddings", default=_LONGEST)),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", default=True)),
        attention_scale=1.0,
        layers=(LayerConfig(None, None, 0, state=state, has_attention=False, has_mlp=False),) * values.num_layers(),
        biases=frozenset(biases),
        tensors=TensorNames(
            layers="backbone.layers",
            in_layer=_names("mixer", state) | {"input_layernorm": Stored("norm")},
            in_model={"model.embed_tokens": Stored("backbone.embeddings"), "model.norm": Stored("backbone.norm_f")},
        ),
    )


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
