"""Gemma: norms that multiply by 1 + w, embeddings times the root of their size, norms before and after a branch (2, 3)."""

from dataclasses import replace

from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, WINDOW, Values
from tetrad.worker_svc.model_facts.config import ModelConfig, Rope
from tetrad.worker_svc.model_facts.tensor_names import Stored, TensorNames

_EVERY_SIXTH = 6
_ATTENTION_SOFTCAP, _LOGIT_SOFTCAP = 50.0, 30.0
"""Soft caps of Gemma 2, if the config does not have the keys; null means none."""
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4


def gemma(values: Values) -> ModelConfig:
    """Describe Gemma 1. In its files, "gelu" means the approximation by tanh."""
    config = decoder(values, is_tied=True, default_activation="gelu_pytorch_tanh")
    config = replace(config, activation="gelu_tanh") if config.activation == "gelu" else config
    names = ("input_layernorm", "post_attention_layernorm")
    return _with_factors(config, {name: name for name in names})


def gemma2(values: Values) -> ModelConfig:
    """Describe Gemma 2: a window in every other layer, soft caps of attention scores and logits."""
    kinds = values.layer_kinds([FULL if index % 2 else SLIDING for index in range(values.num_layers())])
    config = decoder(
        values,
        kinds=kinds,
        default_window=WINDOW,
        is_tied=True,
        default_activation="gelu_pytorch_tanh",
        has_norms_after=True,
        attention_scale=_scale(values),
        attention_softcap=float(values.if_absent("attn_logit_softcapping", _ATTENTION_SOFTCAP) or 0.0),
        logit_softcap=float(values.if_absent("final_logit_softcapping", _LOGIT_SOFTCAP) or 0.0),
    )
    return _with_factors(config, _SANDWICH)


def gemma3(values: Values) -> ModelConfig:
    """Describe Gemma 3: full attention in every sixth layer; the others have a window and another rotary embedding."""
    values.ignore("use_bidirectional_attention")  # it selects the loading function and does not change the description
    pattern = int(values.get("sliding_window_pattern", default=_EVERY_SIXTH))
    kinds = values.layer_kinds([SLIDING if (index + 1) % pattern else FULL for index in range(values.num_layers())])
    config = decoder(
        values,
        kinds=kinds,
        default_window=WINDOW,
        rope={"theta": _GLOBAL_THETA},
        is_tied=True,
        default_activation="gelu_pytorch_tanh",
        has_norms_after=True,
        head_norms="head",
        attention_scale=_scale(values),
        attention_softcap=float(values.get("attn_logit_softcapping", default=0.0)),
        logit_softcap=float(values.get("final_logit_softcapping", default=0.0)),
    )
    if not values.get("rope_parameters"):  # older files have one base for each kind, and a scaling for the global one
        local = Rope(config.head_dim, float(values.get("rope_local_base_freq", default=_LOCAL_THETA)))
        config = replace(config, layers=tuple(replace(each, rope=local) if each.window else each for each in config.layers))
    return _with_factors(config, _SANDWICH | {"self_attn.q_norm": "self_attn.q_norm", "self_attn.k_norm": "self_attn.k_norm"})


_SANDWICH = {
    "input_layernorm": "input_layernorm",
    "self_attn.output_norm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp.output_norm": "post_feedforward_layernorm",
}


def _scale(values: Values) -> float:
    scale: float = float(values.need("query_pre_attn_scalar")) ** -0.5
    return scale


def _with_factors(config: ModelConfig, norms: dict[str, str]) -> ModelConfig:
    """Return the config with norms that multiply by 1 + w, and with scaled embeddings."""
    names = TensorNames(
        in_layer={name: Stored(stored, plus=1.0) for name, stored in norms.items()},
        in_model={"model.norm": Stored("model.norm", plus=1.0)},
    )
    return replace(config, embedding_multiplier=config.hidden_size**0.5, tensors=names)
