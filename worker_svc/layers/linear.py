"""Linear layers: compute y = x W^T + b, with weights in the best form for the device.

A device creates the layers of a model (`make_linear`); the model does not depend on the storage of weights.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812


class Linear(Protocol):
    """A loaded linear layer."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, out_features] of x [T, in_features]."""


LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""Function (weight [out, in], bias [out] or None) -> the layer; the weight may be freed afterwards."""


class PlainLinear:
    """torch's linear layer with an unpacked weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features]."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN's linear layer, with a weight that was reordered once into oneDNN's blocked layout.

    The weight is packed for 32 rows: measured, this layout is as fast as any other from 1 to 1,024 rows, and up to three times
    as fast as the plain layout for the few rows of a decode step.
    """

    _ROWS = 32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self._ROWS)  # noqa: SLF001 - torch has no public name for it
        self._bias = bias
        self._run = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - as above

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features]."""
        result: torch.Tensor = self._run(x, self._packed, self._bias, "none", [], "")
        return result


class Bounded:
    """A Linear whose outputs are bounded.

    Args:
        linear: the product.
        bound: the largest absolute value of an output.
    """

    def __init__(self, linear: Linear, bound: float) -> None:
        self._linear, self._bound = linear, bound

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features]."""
        return self._linear(x).clamp_(-self._bound, self._bound)


class SideBySide:
    """A Linear of several layers with different forms that read the same input."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the concatenated outputs [T, outputs of all] of x."""
        return torch.cat([part(x) for part in self._parts], 1)


def can_pack() -> bool:
    """Return whether this torch has oneDNN with pre-packed float32 linear layers."""
    has_onednn = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call] # torch leaves it bare
    return has_onednn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
