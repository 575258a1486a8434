"""Step: the values that all layers of a forward pass share, in addition to the metadata of attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tetrad.worker_svc.core.step_inputs import WeightSink
from tetrad.worker_svc.kv_cache.state_rows import StateRows


class NoSink:
    """The WeightSink that stores nothing."""

    def take(self, layer: int, weights: torch.Tensor) -> None:
        """Do nothing."""


NO_SINK = NoSink()


class AttendedRows(NamedTuple):
    """Consecutive tokens of one sequence, and what they attend to: keys and values of an encoder's output of N positions.

    `keys_values` is [layers, 2, heads, N, head_dim]; `sink` takes the weights of each layer.
    """

    tokens: slice
    keys_values: torch.Tensor
    sink: WeightSink = NO_SINK


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The T tokens of a step.

    Attributes:
        positions: [T].
        turns: the rotations of each rotary embedding of the model, [T, 1, R / 2] complex64.
        states: the state rows of each KV group with states, by group number.
        attended: the encoder's outputs that sequences attend to, of a model with cross-attention.
    """

    positions: torch.Tensor
    turns: tuple[torch.Tensor, ...]
    states: Mapping[int, StateRows]
    attended: Sequence[AttendedRows] = ()
