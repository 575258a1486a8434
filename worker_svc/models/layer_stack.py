"""Layer stack: runs the layers of a decoder, or of one of its stages, in order."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import ByGroup, M
from tetrad.worker_svc.kv_cache.state_rows import StateRows
from tetrad.worker_svc.layers.rotary import rotary_of
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import NoTaps, Taps
from tetrad.worker_svc.models.layers import LayerReader

NO_STATES: Mapping[int, StateRows] = MappingProxyType({})


class LayerStack(Generic[M]):
    """The layers of a decoder; they keep no state between steps.

    Args:
        config: the description of the layers.
        read: reads the layers.
        device: device of all tensors.
        taps: reads hidden states between layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        read: LayerReader[M],
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
    ) -> None:
        self._taps, self._first_layer = taps, config.stage.first_layer if config.stage else 0
        self._rotaries = [rotary_of(rope.dim, rope.theta, rope.scaling).to(device) for rope in config.ropes if rope]
        self._layers = [read.layer(index) for index in range(config.num_layers)]

    def add_to(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M],
        states: Mapping[int, StateRows] = NO_STATES,
    ) -> None:
        """Compute all layers on the residual stream [T, hidden], in place; write the layers' caches."""
        step = Step(positions, tuple(rotary.turns(positions) for rotary in self._rotaries), states)
        for index, layer in enumerate(self._layers):
            self._taps.see(self._first_layer + index, hidden)
            layer.add_to(hidden, caches, step, metadata)
