"""MLPs: compute down(f(gate(x)) * up(x)), with one product for gate and up, or without a gate down(f(up(x)))."""

from typing import Protocol

import torch

from tetrad.worker_svc.layers.activation import Function, Gate
from tetrad.worker_svc.layers.linear import Linear


class Mlp(Protocol):
    """The part of a layer that computes each token separately."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output [T, hidden] for x [T, hidden]."""


class Expert(Mlp, Protocol):
    """An MLP whose products can be computed for many MLPs at once, outside of it.

    Attributes:
        into: the first product.
        down: the last one.
    """

    into: Linear
    down: Linear

    def between(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the input of the down projection [T, intermediate], from the first product's outputs."""


class GatedMlp:
    """An MLP with a gate, such as SwiGLU; see Expert.

    Args:
        gate_up: [hidden] -> [2 * intermediate], gate before up.
        down: [intermediate] -> [hidden].
        make: computes the input of `down` from gate and up.
    """

    def __init__(self, gate_up: Linear, down: Linear, make: Gate) -> None:
        self.into, self.down, self._make = gate_up, down, make

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        return self.down(self.between(self.into(x)))

    def between(self, inner: torch.Tensor) -> torch.Tensor:
        """See Expert."""
        gate, up = inner.chunk(2, dim=-1)
        return self._make(gate, up)


class PlainMlp:
    """An MLP without a gate; see Expert.

    Args:
        up: [hidden] -> [intermediate].
        down: [intermediate] -> [hidden].
        function: the activation between them.
    """

    def __init__(self, up: Linear, down: Linear, function: Function) -> None:
        self.into, self.down, self._function = up, down, function

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        return self.down(self.between(self.into(x)))

    def between(self, inner: torch.Tensor) -> torch.Tensor:
        """See Expert."""
        return self._function(inner)
