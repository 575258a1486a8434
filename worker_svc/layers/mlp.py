"""MLPs: with a gate, down(f(gate(x)) * up(x)), where gate and up are one product; and without, down(f(up(x)))."""

from typing import Protocol

import torch

from tetrad.worker_svc.layers.activation import Function, Gate
from tetrad.worker_svc.layers.linear import Linear


class Mlp(Protocol):
    """The part of a layer that computes each token by itself."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden] for x [T, hidden]."""


class GatedMlp:
    """SwiGLU, and with other activations.

    Args:
        gate_up: [hidden] -> [2 * intermediate], gate before up.
        down: [intermediate] -> [hidden].
        make: of gate and up what goes down.
    """

    def __init__(self, gate_up: Linear, down: Linear, make: Gate) -> None:
        self._gate_up, self._down, self._make = gate_up, down, make

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._make(gate, up))


class PlainMlp:
    """An MLP without a gate.

    Args:
        up: [hidden] -> [intermediate].
        down: [intermediate] -> [hidden].
        function: between them.
    """

    def __init__(self, up: Linear, down: Linear, function: Function) -> None:
        self._up, self._down, self._function = up, down, function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        return self._down(self._function(self._up(x)))
