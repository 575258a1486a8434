"""Traits: the differences of a model from Llama, by name. A program for one device lists the traits that it supports.

A model with another trait runs through the torch decoder on that device, which supports all traits.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from tetrad.worker_svc.model_facts.config import ModelConfig


class Trait(StrEnum):
    """A trait, with its text in documents and logs."""

    WINDOWS = "windows that differ between layers"
    CHUNKS = "attention in chunks"
    ROPES = "layers that turn differently, or not at all"
    ROPE_SIZES = "layers that turn parts of different sizes"
    LAYER_NORM = "LayerNorm"
    NORM_PLACES = "norms elsewhere than before attention and MLP"
    STREAM_NORMS = "norms of the residual stream itself"
    PARALLEL = "attention beside the MLP"
    HEAD_NORMS = "a norm for each head's dimensions"
    WHOLE_HEAD_NORMS = "a norm over all heads together"
    OTHER_HEAD_NORMS = "norms of heads of other kinds"
    SCALE = "another scale of attention"
    QUERY_SCALING = "queries that grow with their position"
    SOFTCAP = "capped scores of attention"
    LATENT = "latent attention"
    SINKS = "attention sinks"
    SLOPES = "linear biases of scores"
    QKV_BOUND = "bounded queries, keys and values"
    OUTPUT_GATE = "attention with a gate"
    ACTIVATION = "another activation than silu"
    UNGATED = "an MLP without a gate"
    EXPERTS = "a mixture of experts"
    SCALED_EXPERTS = "experts whose inputs are scaled"
    LONE_PARTS = "layers of attention or of an MLP alone"
    STATES = "states in place of keys and values"
    EMBEDDINGS = "scaled embeddings, or added positions"
    EMBEDDING_NORM = "a norm of embeddings"
    RESIDUALS = "scaled residuals"
    CROSS_ATTENTION = "attention to the output of an encoder"
    LOGITS = "scaled or capped logits, or a bias of them"


_HAS: Mapping[Trait, Callable[[ModelConfig], bool]] = {
    Trait.WINDOWS: lambda config: len(config.windows) > 1,
    Trait.CHUNKS: lambda config: any(layer.chunk for layer in config.layers),
    Trait.ROPES: lambda config: len(config.ropes) > 1 or None in config.ropes,
    Trait.ROPE_SIZES: lambda config: len({rope.dim for rope in config.ropes if rope}) > 1,
    Trait.LAYER_NORM: lambda config: config.norm != "rms",
    Trait.NORM_PLACES: lambda config: config.has_norms_after or not config.has_norms_before,
    Trait.STREAM_NORMS: lambda config: config.is_stream_normed,
    Trait.PARALLEL: lambda config: config.is_parallel,
    Trait.HEAD_NORMS: lambda config: config.head_norms == "head" and not config.are_heads_normed_last,
    Trait.WHOLE_HEAD_NORMS: lambda config: config.head_norms == "whole",
    Trait.OTHER_HEAD_NORMS: lambda config: config.head_norms in ("each", "unit") or config.are_heads_normed_last,
    Trait.SCALE: lambda config: (
        bool(config.windows) and config.latent is None and config.attention_scale != config.head_dim**-0.5
    ),
    Trait.QUERY_SCALING: lambda config: any(layer.query_scaling for layer in config.layers),
    Trait.SOFTCAP: lambda config: config.attention_softcap > 0,
    Trait.LATENT: lambda config: config.latent is not None,
    Trait.SINKS: lambda config: config.has_sinks,
    Trait.SLOPES: lambda config: bool(config.slopes),
    Trait.QKV_BOUND: lambda config: config.qkv_bound > 0,
    Trait.OUTPUT_GATE: lambda config: config.has_output_gate,
    Trait.ACTIVATION: lambda config: config.activation != "silu",
    Trait.UNGATED: lambda config: not config.is_gated,
    Trait.EXPERTS: lambda config: any(layer.experts for layer in config.layers),
    Trait.SCALED_EXPERTS: lambda config: any(
        layer.experts and layer.experts.router == "sigmoid_input" for layer in config.layers
    ),
    Trait.LONE_PARTS: lambda config: any(
        not layer.has_mixer or (layer.has_attention and not layer.has_mlp) for layer in config.layers
    ),
    Trait.STATES: lambda config: config.state_size > 0,
    Trait.EMBEDDINGS: lambda config: config.embedding_multiplier != 1 or config.num_learned_positions > 0,
    Trait.EMBEDDING_NORM: lambda config: config.has_norm_of_embeddings,
    Trait.RESIDUALS: lambda config: config.residual_multiplier != 1,
    Trait.CROSS_ATTENTION: lambda config: config.encoder_length > 0,
    Trait.LOGITS: lambda config: config.logit_multiplier != 1 or config.logit_softcap > 0 or "lm_head" in config.biases,
}


def traits_of(config: ModelConfig) -> frozenset[Trait]:
    """Return the traits of a model."""
    return frozenset(trait for trait, has in _HAS.items() if has(config))
