"""Encoders with rotary embeddings: ModernBERT, Nomic BERT and GTE (new implementation)."""

from collections.abc import Mapping
from typing import Any

from tetrad.worker_svc.families.encoder_values import MAX_LAYERS, activation, heads_of, number, refuse, size
from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import Rope
from tetrad.worker_svc.model_facts.encoder import BIASES, EncoderConfig, EncoderNames, Part

_MODERNBERT = EncoderNames(
    ("", "model."),
    words="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    query=Part("layers.{}.attn.Wqkv", 0, 3),
    key=Part("layers.{}.attn.Wqkv", 1, 3),
    value=Part("layers.{}.attn.Wqkv", 2, 3),
    attention_out="layers.{}.attn.Wo",
    attention_norm="layers.{}.attn_norm",
    gate=Part("layers.{}.mlp.Wi", 0, 2),
    up=Part("layers.{}.mlp.Wi", 1, 2),
    down="layers.{}.mlp.Wo",
    output_norm="layers.{}.mlp_norm",
)
_NOMIC = EncoderNames(
    ("", "bert.", "nomic_bert."),
    embedding_norm="emb_ln",
    query=Part("encoder.layers.{}.attn.Wqkv", 0, 3),
    key=Part("encoder.layers.{}.attn.Wqkv", 1, 3),
    value=Part("encoder.layers.{}.attn.Wqkv", 2, 3),
    attention_out="encoder.layers.{}.attn.out_proj",
    attention_norm="encoder.layers.{}.norm1",
    gate=Part("encoder.layers.{}.mlp.fc12"),
    up=Part("encoder.layers.{}.mlp.fc11"),
    down="encoder.layers.{}.mlp.fc2",
    output_norm="encoder.layers.{}.norm2",
)
_GTE = EncoderNames(
    ("", "new.", "gte."),
    query=Part("encoder.layer.{}.attention.qkv_proj", 0, 3),
    key=Part("encoder.layer.{}.attention.qkv_proj", 1, 3),
    value=Part("encoder.layer.{}.attention.qkv_proj", 2, 3),
    attention_out="encoder.layer.{}.attention.o_proj",
    attention_norm="encoder.layer.{}.attn_ln",
    up=Part("encoder.layer.{}.mlp.up_gate_proj", 0, 2),
    gate=Part("encoder.layer.{}.mlp.up_gate_proj", 1, 2),
    down="encoder.layer.{}.mlp.down_proj",
    output_norm="encoder.layer.{}.mlp_ln",
)
_LOCAL = 128
_LOCAL_EVERY = 3


def modernbert(config: Mapping[str, Any], family: str) -> EncoderConfig:
    """Describe ModernBERT: norms before each branch, a gate, and a window in two of three layers."""
    hidden, num_layers = size(config, "hidden_size"), size(config, "num_hidden_layers", most=MAX_LAYERS)
    heads = heads_of(config, hidden, "num_attention_heads")
    every = size(config, "global_attn_every_n_layers", default=_LOCAL_EVERY)
    values = Values(config)
    kinds = values.layer_kinds([SLIDING if index % every else FULL for index in range(num_layers)])
    ropes = {
        FULL: values.rope(hidden // heads, kind=FULL, theta=number(config, "global_rope_theta", default=160_000.0)),
        SLIDING: values.rope(hidden // heads, kind=SLIDING, theta=number(config, "local_rope_theta", default=10_000.0)),
    }
    window = size(config, "local_attention", default=_LOCAL, least=2) // 2
    biases = {"qkv": "attention_bias", "attention_out": "attention_bias", "gate_up": "mlp_bias", "down": "mlp_bias"}
    return EncoderConfig(
        architecture=values.architecture,
        family=family,
        names=_MODERNBERT,
        vocab_size=size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        intermediate_size=size(config, "intermediate_size"),
        num_token_types=0,
        max_position_embeddings=size(config, "max_position_embeddings"),
        norm_eps=number(config, "norm_eps", default=1e-5),
        activation=activation(config, "hidden_activation"),
        classifies_mean=config.get("classifier_pooling", "cls") == "mean",
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == SLIDING else 0 for kind in kinds),
        biases=frozenset(
            [*(name for name, key in biases.items() if config.get(key)), *(["norm"] if config.get("norm_bias") else [])]
        ),
        is_gated=True,
        norms_first=True,
        has_first_norm=False,
    )


def nomic(config: Mapping[str, Any], family: str) -> EncoderConfig:
    """Describe Nomic BERT: BERT with rotary embeddings and a gate; only norms have biases."""
    for key, expected in (
        ("prenorm", False),
        ("parallel_block", False),
        ("use_rms_norm", False),
        ("causal", False),
        ("rotary_emb_interleaved", False),
        ("rotary_emb_scale_base", None),
        ("activation_function", "swiglu"),
        ("qkv_proj_bias", False),
        ("mlp_fc1_bias", False),
        ("mlp_fc2_bias", False),
        ("num_experts", 0),
        ("rotary_scaling_factor", None),
    ):
        refuse(config, key, expected)
    base = number(config, "rotary_emb_base", default=1000.0)
    share = number(config, "rotary_emb_fraction", default=1.0)
    return _gated_bert(config, family, _NOMIC, frozenset({"norm"}), theta=base, share=share, default_activation="silu")


def gte(config: Mapping[str, Any], family: str) -> EncoderConfig:
    """Describe GTE in its new implementation, transformers' or its own: BERT with rotary embeddings and a gate."""
    refuse(config, "position_embedding_type", "rope")
    refuse(config, "layer_norm_type", "layer_norm")
    refuse(config, "logn_attention_scale", False)
    theta = 160_000.0 if family == "Gte" else 10_000.0
    return _gated_bert(config, family, _GTE, BIASES - {"gate_up"}, theta=theta, share=1.0, default_activation="gelu")


def _gated_bert(
    config: Mapping[str, Any],
    family: str,
    names: EncoderNames,
    biases: frozenset[str],
    *,
    theta: float,
    share: float,
    default_activation: str,
) -> EncoderConfig:
    hidden = size(config, "hidden_size", "n_embd")
    num_layers = size(config, "num_hidden_layers", "n_layer", most=MAX_LAYERS)
    heads = heads_of(config, hidden, "num_attention_heads", "n_head")
    rope: Rope = Values(config).rope(hidden // heads, theta=theta, share=share)
    return EncoderConfig(
        architecture=Values(config).architecture,
        family=family,
        names=names,
        vocab_size=size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        intermediate_size=size(config, "intermediate_size", "n_inner"),
        num_token_types=size(config, "type_vocab_size", default=0, least=0),
        max_position_embeddings=size(config, "max_position_embeddings", "n_positions"),
        norm_eps=number(config, "layer_norm_eps", "layer_norm_epsilon", default=1e-12),
        activation=activation(config, "hidden_act", default_activation),
        ropes=(rope,) * num_layers,
        biases=biases,
        is_gated=True,
    )
