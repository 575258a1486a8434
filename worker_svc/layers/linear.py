"""Linear layers: y = x W^T + b, with weights in the form that suits the device.

A device makes the layers of a model (`make_linear`); the model does not depend on the storage of weights.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812


class Linear(Protocol):
    """A loaded linear layer."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features] for x [T, in_features]."""


LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""(weight [out, in], bias [out] or None) -> the layer; the weight may be freed afterwards."""


class PlainLinear:
    """torch's own linear over an unpacked weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out_features]."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN's linear over a weight that was reordered once into its blocked layout.

    Packed for 32 rows: measured, that layout is as good as any from 1 to 1,024 rows, and up to three times as fast as the
    plain one at the few rows of a decode step.
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


class SideBySide:
    """A Linear of several over one input, whose forms differ."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, outputs of all]."""
        return torch.cat([part(x) for part in self._parts], 1)


def can_pack() -> bool:
    """Return whether this torch has oneDNN with pre-packed float32 linear layers."""
    has_onednn = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call] # torch leaves it bare
    return has_onednn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
