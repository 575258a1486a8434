"""Norms over the last dimension: RMSNorm, x / rms(x) * weight; LayerNorm, which subtracts the mean first.

Both keep the type of their input.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

Norm = Callable[[torch.Tensor], torch.Tensor]
"""Function [..., D] -> [..., D]."""


class RmsNorm:
    """Root-mean-square norm.

    Args:
        weight: [D].
        eps: added to the mean square.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._shape, self._eps = weight, tuple(weight.shape), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [..., D]."""
        return F.rms_norm(x, self._shape, self._weight, self._eps)


class UnitNorm:
    """RMSNorm without a weight.

    Args:
        size: D.
        eps: added to the mean square.
    """

    def __init__(self, size: int, eps: float) -> None:
        self._shape, self._eps = (size,), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [..., D]."""
        return F.rms_norm(x, self._shape, eps=self._eps)


class LayerNorm:
    """A norm that subtracts the mean.

    Args:
        weight: [D], or [H, D] with a weight for each of H heads.
        bias: [D]; None: no bias.
        eps: added to the variance.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [..., D], or [..., H, D]."""
        size = self._weight.shape[-1:]
        if self._weight.dim() > 1:
            return F.layer_norm(x, size, eps=self._eps) * self._weight
        return F.layer_norm(x, size, self._weight, self._bias, self._eps)


class Multiplied:
    """A norm, or no norm, times a number.

    Args:
        norm: the norm, or `unchanged`; its result is changed in place.
        multiplier: the number.
    """

    def __init__(self, norm: Norm, multiplier: float) -> None:
        self._norm, self._multiplier = norm, multiplier

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [..., D] times the number."""
        return self._norm(x).mul_(self._multiplier)


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """Return x itself; used for branches without a norm."""
    return x
