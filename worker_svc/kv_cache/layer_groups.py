"""Layer groups: which layers of a model share block tables, and where in a block each layer's page lies.

Layers of a group see equally many keys, or all have a state, so they need the same blocks of a sequence. All groups take their
blocks from one pool, so they have equally many pages in a block; a block holds pages of one group at a time (vLLM's hybrid KV
cache). Knows numbers of layers; knows no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tetrad.worker_svc.model_facts.config import CacheKind, ModelConfig

_ONE_SIZE_BELOW = 1.5
"""Groups are as large as the largest kind of layers if that has less than so many times the layers of the smallest."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table per request.

    Attributes:
        layers: numbers of their caches; the place of a layer here is that of its page in a block.
        sliding_window: keys that a query sees, itself included; None: all.
        is_state: they keep a state, and no keys.
    """

    layers: tuple[int, ...]
    sliding_window: int | None = None
    is_state: bool = False

    @classmethod
    def of_kind(cls, layers: tuple[int, ...], kind: CacheKind) -> "LayerGroup":
        """Return a group of layers of one kind."""
        return cls(layers, is_state=True) if kind == "state" else cls(layers, kind)


def group_layers(kinds_of_layers: Sequence[CacheKind]) -> tuple[LayerGroup, ...]:
    """Return the groups of a model, those that see all keys first, those with a state last.

    A kind of layers is cut into groups as large as the smallest kind: 10 layers that see all keys and 20 with a window make 3
    groups of 10. A group with fewer layers leaves pages of its blocks unused.

    Args:
        kinds_of_layers: of each cache.
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
    """Return the groups of a model; for a stage of a pipeline all groups of the model, each with the layers that it has."""
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
