"""Layer stack: runs the layers of a decoder, or of one of its stages, in order."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple

import torch

from tetrad.worker_svc.attention.interface import ByGroup, M
from tetrad.worker_svc.kv_cache.state_rows import StateRows
from tetrad.worker_svc.layers.rotary import rotary_of
from tetrad.worker_svc.layers.step import AttendedRows, Step
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import NoTaps, Taps
from tetrad.worker_svc.models.layers import LayerReader

NO_STATES: Mapping[int, StateRows] = MappingProxyType({})


class DeepRows(NamedTuple):
    """Rows [N] int64 of a step's tokens, and the values [L, N, hidden] that are added to them behind the first L layers."""

    rows: torch.Tensor
    values: torch.Tensor

    def add_to(self, hidden: torch.Tensor, layer: int) -> None:
        """Add the values of a layer to the residual stream [T, hidden] behind it, in place."""
        if layer < len(self.values):
            hidden.index_add_(0, self.rows, self.values[layer].to(hidden.dtype))


NO_DEEP_ROWS = DeepRows(torch.empty(0, dtype=torch.int64), torch.empty(0, 0, 0))


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
        self._rotaries = [rotary_of(rope.dim, rope.theta, rope.scaling, rope.axes).to(device) for rope in config.ropes if rope]
        self._layers = [read.layer(index) for index in range(config.num_layers)]

    def add_to(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M],
        states: Mapping[int, StateRows] = NO_STATES,
        axes: torch.Tensor | None = None,
        deep: DeepRows = NO_DEEP_ROWS,
        attended: Sequence[AttendedRows] = (),
    ) -> None:
        """Compute all layers on the residual stream [T, hidden], in place; write the layers' caches.

        Args:
            hidden: the residual stream.
            positions: [T].
            caches: the caches of the layers.
            metadata, states: those of the KV groups.
            axes: [3, T], positions of the rotary embedding on three axes; None: they are `positions`.
            deep: rows that are added behind the model's first layers.
            attended: see Step.
        """
        step = Step(positions, tuple(rotary.turns(positions, axes) for rotary in self._rotaries), states, attended)
        for index, layer in enumerate(self._layers, self._first_layer):
            self._taps.see(index, hidden)
            layer.add_to(hidden, caches, step, metadata)
            deep.add_to(hidden, index)
