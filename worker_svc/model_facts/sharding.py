"""Sharding: cuts a decoder's description for one of several ranks, and checks that it can be cut into so many parts.

Heads, MLPs (those of experts too) and the vocabulary are split. Where ranks outnumber the heads of keys and values, each rank
has one of them, and several have the same. All other values are the same on every rank.
"""

from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig


def shard_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """Return the description of a rank's part of a model; `check_size` must have passed."""
    first, end = shard.bounds(config.vocab_size)
    return replace(
        config,
        num_heads=config.num_heads // shard.size,
        num_kv_heads=max(1, config.num_kv_heads // shard.size),
        vocab_size=end - first,
        layers=tuple(_shard_layer(layer, shard.size) for layer in config.layers),
    )


def key_shard(config: ModelConfig, shard: Shard) -> Shard:
    """Return which part of the heads of keys and values a rank has."""
    size = min(shard.size, config.num_kv_heads)
    return Shard(shard.index * size // shard.size, size)


def check_size(config: ModelConfig, size: int) -> None:
    """ModelError if a model cannot be cut into `size` parts; the message has the sizes that it can be cut into."""
    if _divides(config, size):
        return
    parts = f"{config.num_heads} attention heads, {config.num_kv_heads} KV heads and MLPs of " + " and ".join(
        map(str, sorted(_widths(config)))
    )
    sizes = ", ".join(str(each) for each in range(1, config.num_heads + 1) if _divides(config, each))
    raise ModelError(f"tensor_parallel_size {size} does not divide this model's {parts}. It may be: {sizes}.")


def _divides(config: ModelConfig, size: int) -> bool:
    fits_keys = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    return config.num_heads % size == 0 and fits_keys and not any(width % size for width in _widths(config))


def _widths(config: ModelConfig) -> set[int]:
    plain = {layer.intermediate_size for layer in config.layers if layer.experts is None and layer.has_mlp}
    experts = {layer.experts for layer in config.layers if layer.experts is not None}
    return plain | {each.intermediate_size for each in experts} | {each.shared_size for each in experts if each.shared_size}


def _shard_layer(layer: LayerConfig, size: int) -> LayerConfig:
    experts = layer.experts and replace(
        layer.experts,
        intermediate_size=layer.experts.intermediate_size // size,
        shared_size=layer.experts.shared_size // size,
    )
    return replace(layer, intermediate_size=layer.intermediate_size // size, experts=experts)
