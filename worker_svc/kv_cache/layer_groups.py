"""Layer groups: determines the layers that share block tables, and the place of each layer's page in a block.

The layers of a group attend to the same number of keys, or all have a state, so they need the same blocks of a sequence. All
groups take blocks from one pool, so they have the same number of pages in a block; a block holds pages of one group at a time
(vLLM's hybrid KV cache). Knows numbers of layers; knows no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tetrad.worker_svc.model_facts.config import CacheKind, ModelConfig

_ONE_SIZE_BELOW = 1.5
"""Largest ratio of layers of the largest and the smallest kind for which groups have the size of the largest kind."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table per request.

    Attributes:
        layers: numbers of the layers' caches; the index of a layer in this tuple is the index of its page in a block.
        sliding_window: number of keys that a query attends to, itself included; None: all.
        is_state: the layers have a state instead of keys and values.
    """

    layers: tuple[int, ...]
    sliding_window: int | None = None
    is_state: bool = False

    @classmethod
    def of_kind(cls, layers: tuple[int, ...], kind: CacheKind) -> "LayerGroup":
        """Return a group of layers of one kind."""
        return cls(layers, is_state=True) if kind == "state" else cls(layers, kind)


def group_layers(kinds_of_layers: Sequence[CacheKind]) -> tuple[LayerGroup, ...]:
    """Return the groups of a model: groups with full attention first, groups with a state last.

    Each kind of layers is divided into groups of the size of the smallest kind: 10 layers with full attention and 20 with a
    window make 3 groups of 10. A group with fewer layers leaves pages of its blocks unused.

    Args:
        kinds_of_layers: the kind of each layer's cache.
    """
    kinds = sorted(dict.fromkeys(kinds_of_layers), key=lambda kind: (kind == "state", kind is not None))
    members = [[layer for layer, its_kind in enumerate(kinds_of_layers) if its_kind == kind] for kind in kinds]
    smallest, largest = min(map(len, members)), max(map(len, members))
    size = largest if largest < _ONE_SIZE_BELOW * smallest else smallest
    return tuple(
        LayerGroup.of_kind(tuple(layers[first : first + size]), kind)
        for kind, layers in zip(kinds, members, strict=True)
        for first in range(0, len(layers), size)
    )


def groups_of(config: ModelConfig) -> tuple[LayerGroup, ...]:
    """Return the groups of a model; for a pipeline stage, all groups of the model, each reduced to the stage's layers."""
    stage = config.stage
    if stage is None:
        return group_layers(config.cache_kinds)
    own = range(stage.first_cache, stage.first_cache + len(config.cache_kinds))
    return tuple(
        replace(group, layers=tuple(layer - own.start for layer in group.layers if layer in own))
        for group in group_layers(stage.cache_kinds)
    )


def group_of_layers(groups: Sequence[LayerGroup]) -> list[int]:
    """Return the number of each layer's group."""
    group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return [group_of[layer] for layer in sorted(group_of)]
