"""Common part of the families: builds Llama's description with the sizes of a config; the families then change it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Activation names of transformers -> names of layers/activation.py."""
_ACTIVATION_KEYS = ("hidden_activation", "hidden_act", "activation_function", "activation")
_EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
NO_VALUES: Mapping[str, float] = MappingProxyType({})
QKV = frozenset({"q_proj", "k_proj", "v_proj"})
MLP = frozenset({"gate_proj", "up_proj", "down_proj"})


def decoder(
    values: Values,
    *,
    kinds: Sequence[str] | None = None,
    default_kind: str = FULL,
    default_window: int | None = None,
    rope_kinds: Sequence[str] = (FULL, SLIDING),
    rope: Mapping[str, Any] = NO_VALUES,
    is_tied: bool = False,
    default_activation: str = "silu",
    default_size: int = 0,
    default_positions: int = 0,
    default_eps: float = 0.0,
    head_dim: int = 0,
    **changes: Any,
) -> ModelConfig:
    """Return Llama's description with a config's sizes.

    Args:
        values: the values of the config.
        kinds: the layers' kinds of attention; None: layer_types, or `default_kind` for all layers if the config has a window.
        default_kind: see `kinds`.
        default_window: size of windows, if the config does not have the key; None: no windows.
        rope_kinds: the kinds of layers with rotary embeddings.
        rope: further arguments of Values.rope.
        is_tied: whether the output layer is tied to the embedding, if the config does not say.
        default_activation: the MLP's activation, if the config does not say.
        head_dim: size of a head; 0: the config's value.
        default_positions: longest context, if the config does not say; 0: the config must say.
        default_eps: epsilon of norms, if the config does not say; 0: the config must say.
        default_size: intermediate size, if the config does not say; 0: the config must say.
        changes: attributes that differ from Llama's.
    """
    heads = int(values.need("num_attention_heads", "n_head", "num_heads", "n_heads"))
    hidden = int(values.need("n_embed", "hidden_size", "n_embd", "d_model"))
    head_dim = head_dim or int(values.get("head_dim", default=hidden // heads))
    size = int(
        values.get("intermediate_size", "n_inner", "ffn_hidden_size", default=default_size) or values.need("intermediate_size")
    )
    if kinds is None:
        kinds = values.layer_kinds([default_kind] * values.num_layers())
    ropes = {kind: values.rope(head_dim, kind=kind, **rope) if kind in rope_kinds else None for kind in (FULL, SLIDING)}
    windows = {FULL: None, SLIDING: _window(values, default_window)}
    facts: dict[str, Any] = {
        "architecture": values.architecture,
        "vocab_size": int(values.need("vocab_size")),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": int(values.get("num_key_value_heads", default=heads)),
        "head_dim": head_dim,
        "norm_eps": float(values.get(*_EPS_KEYS, default=default_eps) or values.need(*_EPS_KEYS)),
        "max_position_embeddings": int(
            values.get("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", default=default_positions)
            or values.need("max_position_embeddings")
        ),
        "tie_word_embeddings": bool(values.get("tie_word_embeddings", default=is_tied)),
        "attention_scale": head_dim**-0.5,
        "activation": values.choose(*_ACTIVATION_KEYS, known=ACTIVATIONS, default=default_activation),
        "biases": _biases(values),
        "layers": tuple(LayerConfig(ropes[kind], windows[kind], size) for kind in kinds),
    }
    return ModelConfig(**facts | changes)


def _window(values: Values, default: int | None) -> int | None:
    window = values.if_absent("sliding_window", default)
    return int(window) if window and values.get("use_sliding_window", default=True) else None


def _biases(values: Values) -> frozenset[str]:
    of_attention = QKV | {"o_proj"} if values.get("attention_bias") else frozenset()
    return of_attention | (MLP if values.get("mlp_bias") else frozenset())
