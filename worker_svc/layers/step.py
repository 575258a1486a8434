"""Step: the values that all layers of a forward pass share, in addition to the metadata of attention."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tetrad.worker_svc.kv_cache.state_rows import StateRows


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The T tokens of a step.

    Attributes:
        positions: [T].
        turns: the rotations of each rotary embedding of the model, [T, 1, R / 2] complex64.
        states: the state rows of each KV group with states, by group number.
    """

    positions: torch.Tensor
    turns: tuple[torch.Tensor, ...]
    states: Mapping[int, StateRows]
