"""Encoder families: read the description of an encoder from its config.json.

Called when a model is loaded, and before its weights are downloaded. Never imports torch. A setting that would change results
and is not implemented is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.encoder_values import MAX_LAYERS, activation, heads_of, number, refuse, size
from tetrad.worker_svc.families.pooling import labels_of
from tetrad.worker_svc.families.rotary_encoders import gte, modernbert, nomic
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.model_facts.encoder import EncoderConfig, EncoderNames, Part

_DISTILBERT = EncoderNames(
    ("", "distilbert."),
    query=Part("transformer.layer.{}.attention.q_lin"),
    key=Part("transformer.layer.{}.attention.k_lin"),
    value=Part("transformer.layer.{}.attention.v_lin"),
    attention_out="transformer.layer.{}.attention.out_lin",
    attention_norm="transformer.layer.{}.sa_layer_norm",
    up=Part("transformer.layer.{}.ffn.lin1"),
    down="transformer.layer.{}.ffn.lin2",
    output_norm="transformer.layer.{}.output_layer_norm",
)


def _bert(config: Mapping[str, Any], family: str, *, names: EncoderNames, has_offset: bool) -> EncoderConfig:
    """Describe BERT and RoBERTa; RoBERTa's positions begin after the position of padding."""
    _refuse_decoder(config)
    hidden = size(config, "hidden_size")
    first_position = size(config, "pad_token_id", default=1, least=0) + 1 if has_offset else 0
    num_positions = size(config, "max_position_embeddings") - first_position
    if num_positions < 1:
        raise ModelError(f"config.json: max_position_embeddings leaves no position behind the padding id {first_position - 1}.")
    return EncoderConfig(
        architecture=architecture_of(config),
        family=family,
        names=names,
        vocab_size=size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=size(config, "num_hidden_layers", most=MAX_LAYERS),
        num_heads=heads_of(config, hidden, "num_attention_heads"),
        intermediate_size=size(config, "intermediate_size"),
        num_token_types=size(config, "type_vocab_size", default=2, least=0),
        max_position_embeddings=num_positions,
        first_position=first_position,
        norm_eps=number(config, "layer_norm_eps", default=1e-12),
        activation=activation(config, "hidden_act"),
    )


def _distilbert(config: Mapping[str, Any], family: str) -> EncoderConfig:
    """Describe DistilBERT: BERT without token types, with other tensor names."""
    _refuse_decoder(config)
    hidden = size(config, "dim")
    return EncoderConfig(
        architecture=architecture_of(config),
        family=family,
        names=_DISTILBERT,
        vocab_size=size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=size(config, "n_layers", most=MAX_LAYERS),
        num_heads=heads_of(config, hidden, "n_heads"),
        intermediate_size=size(config, "hidden_dim"),
        num_token_types=0,
        max_position_embeddings=size(config, "max_position_embeddings"),
        norm_eps=1e-12,
        activation=activation(config, "activation"),
    )


def _refuse_decoder(config: Mapping[str, Any]) -> None:
    refuse(config, "position_embedding_type", "absolute")
    refuse(config, "is_decoder", False)
    refuse(config, "add_cross_attention", False)


_plain = partial(_bert, names=EncoderNames(("", "bert.")), has_offset=False)
_roberta = partial(_bert, names=EncoderNames(("", "roberta.")), has_offset=True)
ENCODER_FAMILIES: Mapping[str, Callable[[Mapping[str, Any], str], EncoderConfig]] = {
    "Bert": _plain,
    "Roberta": _roberta,
    "XLMRoberta": _roberta,
    "Camembert": _roberta,
    "DistilBert": _distilbert,
    "ModernBert": modernbert,
    "NomicBert": nomic,
    "Gte": gte,
    "New": gte,
}
"""Start of an architecture's name -> function that describes it. "New" and "GteNew" are GTE's names for its implementation."""
_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
COLBERT = "HF_ColBERT"
"""Architecture of ColBERT: BERT with a projection of each token (Khattab and Zaharia 2020)."""
_COLBERT_DIM = 128
ENCODERS = (*(f"{family}{head}" for family in ENCODER_FAMILIES for head in _HEADS), "GteNewModel", COLBERT)
"""Names in config.json of the architectures that run as encoders."""


def pooled_size(config: Mapping[str, Any]) -> int:
    """Return the size of ColBERT's token embeddings."""
    return size(config, "colbert_dim", "dim", "projection_dim", default=_COLBERT_DIM)


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether config.json names an architecture that runs as an encoder."""
    return architecture_of(config) in ENCODERS


def check_encoder(config: Mapping[str, Any], device: str) -> EncoderConfig:
    """Return the description of an encoder; raise ModelError if the device cannot run it.

    Args:
        config: the values of config.json.
        device: "cpu", "cuda", "auto" or "sim".
    """
    if device == "sim":
        raise ModelError(f"Architecture {architecture_of(config)} pools; the sim device does not. Use --device cpu or cuda.")
    if config.get("quantization_config"):
        raise ModelError(f"Architecture {architecture_of(config)} runs with weights in floats only.")
    return read_encoder_config(config)


def family_of(architecture: str) -> str:
    """Return the family of an architecture that runs as an encoder."""
    if architecture == COLBERT:
        return "Bert"
    architecture = architecture.removeprefix("Gte") if architecture.startswith("GteNew") else architecture
    return next(name for name in ENCODER_FAMILIES if architecture.startswith(name) and architecture[len(name) :] in _HEADS)


def read_encoder_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Return an encoder's description; raise ModelError, with the key, if a value is missing, out of range or not supported."""
    architecture = architecture_of(config)
    family = family_of(architecture)
    facts = ENCODER_FAMILIES[family](config, family)
    classifies = architecture.endswith("Classification")
    return replace(facts, labels=labels_of(config)) if classifies else facts
