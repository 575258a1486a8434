"""Mixers: the parts of layers that combine a sequence's tokens through a cache: attention, a state, or both."""

from collections.abc import Sequence
from typing import Generic, Protocol

import torch

from tetrad.worker_svc.attention.interface import AttentionBackend, ByGroup, M, M_contra
from tetrad.worker_svc.kv_cache.layer_groups import group_of_layers, groups_of
from tetrad.worker_svc.layers.attention import Attention
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.states.layer import StateLayer
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.layers.summed import SummedAttention
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.attention import AttentionReader
from tetrad.worker_svc.models.states import StateReader


class Mixer(Protocol[M_contra]):
    """A part of a layer that reads and writes caches."""

    def __call__(
        self, x: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M_contra]
    ) -> torch.Tensor:
        """Return the output [T, hidden] for x [T, hidden]; `caches` and `metadata` are those of all layers and groups."""


class AttentionMixer(Generic[M]):
    """Attention with one of the caches; see Mixer.

    Args:
        attention: the attention of the layer.
        cache, group: numbers of the layer's cache and of its KV group.
    """

    def __init__(self, attention: Attention[M], cache: int, group: int) -> None:
        self._attention, self._cache, self._group = attention, cache, group

    def __call__(self, x: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> torch.Tensor:
        """See Mixer."""
        return self._attention(x, caches[self._cache], step, metadata[self._group])


class StateMixer(Generic[M]):
    """A state layer with one of the caches; see Mixer.

    Args:
        layer: the state layer.
        cache, group: numbers of its cache and of its KV group.
    """

    def __init__(self, layer: StateLayer, cache: int, group: int) -> None:
        self._layer, self._cache, self._group = layer, cache, group

    def __call__(
        self,
        x: torch.Tensor,
        caches: Sequence[torch.Tensor],
        step: Step,
        metadata: ByGroup[M],  # noqa: ARG002 - of the protocol
    ) -> torch.Tensor:
        """See Mixer."""
        return self._layer(x, caches[self._cache], step.states[self._group])


class BothMixers(Generic[M]):
    """Two mixers that read the same input; their outputs are added. See Mixer."""

    def __init__(self, first: Mixer[M], second: Mixer[M]) -> None:
        self._first, self._second = first, second

    def __call__(self, x: torch.Tensor, caches: Sequence[torch.Tensor], step: Step, metadata: ByGroup[M]) -> torch.Tensor:
        """See Mixer."""
        return self._first(x, caches, step, metadata).add_(self._second(x, caches, step, metadata))


class MixerReader(Generic[M]):
    """Reads the mixer of one layer at a time.

    Args:
        config: the model's description.
        parameters: the model's weights.
        attention: creates the attention of each layer.
        ranks: the ranks that share the heads; None: this rank has all heads. States are whole on every rank.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attention: AttentionBackend[M],
        ranks: Collectives | None = None,
    ) -> None:
        self._config, self._ranks = config, ranks
        self._attentions = AttentionReader(config, parameters, attention, ranks)
        self._states = StateReader(config, parameters)
        self._group_of = group_of_layers(groups_of(config))

    def mixer(self, index: int) -> Mixer[M]:
        """Return a layer's mixer."""
        layer, prefix = self._config.layers[index], f"model.layers.{index}"
        cache = sum(len(before.cache_kinds) for before in self._config.layers[:index])
        mixers: list[Mixer[M]] = []
        if layer.has_attention:
            attention = self._attentions.attention(f"{prefix}.self_attn", layer)
            if self._ranks is not None:
                attention = SummedAttention(attention, self._ranks)
            mixers.append(AttentionMixer(attention, cache, self._group_of[cache]))
            cache += 1
        if layer.state is not None:
            mixers.append(StateMixer(self._states.layer(f"{prefix}.mixer", layer.state), cache, self._group_of[cache]))
        return mixers[0] if len(mixers) == 1 else BothMixers(*mixers)
