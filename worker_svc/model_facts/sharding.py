"""Sharding: reduces a decoder's description to one rank's part, and checks that the model can be divided into these parts.

Heads, MLPs and the vocabulary are split. Experts are split like MLPs, or each rank has whole experts. If there are more ranks
than KV heads, each rank has one KV head, and several ranks have the same one. All other values are the same on every rank.
"""

from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig

NO_EXPERTS = "enable_expert_parallel divides experts, and this model has none; start without it"


def shard_config(config: ModelConfig, shard: Shard, *, experts: Shard | None = None) -> ModelConfig:
    """Return the description of a rank's part of a model; `check_size` must have passed.

    Args:
        config: the description of the whole model.
        shard: the part of each layer.
        experts: the part of whole experts; None: a part of each expert.
    """
    first, end = shard.bounds(config.vocab_size)
    return replace(
        config,
        slopes=config.slopes[slice(*shard.bounds(len(config.slopes)))],
        num_heads=config.num_heads // shard.size,
        num_kv_heads=max(1, config.num_kv_heads // shard.size),
        vocab_size=end - first,
        layers=tuple(_shard_layer(layer, shard, experts) for layer in config.layers),
    )


def key_shard(config: ModelConfig, shard: Shard) -> Shard:
    """Return a rank's part of the KV heads."""
    size = min(shard.size, config.num_kv_heads)
    return Shard(shard.index * size // shard.size, size)


def own_experts(num_experts: int, shard: Shard) -> range:
    """Return the experts of a rank that has whole experts: consecutive numbers."""
    return range(*shard.bounds(num_experts))


def check_size(config: ModelConfig, size: int, *, expert_parallel: bool = False, num_engines: int = 1) -> None:
    """Raise ModelError, with the possible sizes, if a model cannot be divided into `size` parts.

    Args:
        config: the description of the whole model.
        size: number of parts.
        expert_parallel: whether each rank has whole experts; the size of an expert does not matter then.
        num_engines: number of engines that share whole experts.
    """
    if expert_parallel:
        fewest = min((layer.experts.num_experts for layer in config.layers if layer.experts), default=0)
        if not fewest:
            raise ModelError(f"{NO_EXPERTS}.")
        if size * num_engines > fewest:
            ranks = f"the {size} ranks of tensor_parallel_size"
            if num_engines > 1:
                ranks = f"{size * num_engines} ranks (tensor_parallel_size {size}, data_parallel_size {num_engines})"
            raise ModelError(f"enable_expert_parallel divides {fewest} experts among {ranks}; use at most {fewest} ranks.")
    if divides(config, size, expert_parallel=expert_parallel):
        return
    parts = f"{config.num_heads} attention heads, {config.num_kv_heads} KV heads and MLPs of " + " and ".join(
        map(str, sorted(_widths(config, expert_parallel)))
    )
    sizes = [each for each in range(1, config.num_heads + 1) if divides(config, each, expert_parallel=expert_parallel)]
    may_be = ", ".join(map(str, sizes))
    raise ModelError(f"tensor_parallel_size {size} does not divide this model's {parts}. It may be: {may_be}.")


def check_blocks(config: ModelConfig, size: int, block: int, *, expert_parallel: bool = False) -> None:
    """Raise ModelError, with the sizes, if matrices consist of whole blocks, but their parts do not.

    Args:
        config: the description of the whole model.
        size: number of parts.
        block: number of columns in a block, which are quantized together.
        expert_parallel: see check_size.
    """
    of_head = config.head_dim if config.latent is None else config.latent.value_dim
    for columns in sorted({config.num_heads * of_head} | _widths(config, expert_parallel)):
        if not columns % block and columns // size % block:
            raise ModelError(
                f"tensor_parallel_size {size} cuts matrices of {columns} columns into parts of {columns // size}, but "
                f"quantization has blocks of {block}; use another size, or weights that are not quantized."
            )


def divides(config: ModelConfig, size: int, *, expert_parallel: bool = False) -> bool:
    """Return whether a model can be divided into `size` parts; see check_size."""
    fits_keys = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    return config.num_heads % size == 0 and fits_keys and not any(width % size for width in _widths(config, expert_parallel))


def _widths(config: ModelConfig, expert_parallel: bool) -> set[int]:
    plain = {layer.intermediate_size for layer in config.layers if layer.experts is None and layer.has_mlp}
    experts = {layer.experts for layer in config.layers if layer.experts is not None}
    cut = set() if expert_parallel else {each.intermediate_size for each in experts}
    return plain | cut | {each.shared_size for each in experts if each.shared_size}


def _shard_layer(layer: LayerConfig, shard: Shard, whole: Shard | None) -> LayerConfig:
    experts = layer.experts
    if experts is not None and whole is not None:
        experts = replace(experts, own=own_experts(experts.num_experts, whole), shared_size=experts.shared_size // shard.size)
    elif experts is not None:
        experts = replace(
            experts,
            intermediate_size=experts.intermediate_size // shard.size,
            shared_size=experts.shared_size // shard.size,
        )
    return replace(layer, intermediate_size=layer.intermediate_size // shard.size, experts=experts)
