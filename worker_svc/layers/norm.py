"""Norms over the last dimension: RMSNorm, x / rms(x) * weight; LayerNorm, which subtracts the mean first.

Both keep the type of their input.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

Norm = Callable[[torch.Tensor], torch.Tensor]
"""[..., D] -> [..., D]."""


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
    """Norm with a mean.

    Args:
        weight: [D], or [H, D]: one for each of H heads.
        bias: [D]; None: there is none.
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
    """A norm, or none, times a number.

    Args:
        norm: returns a tensor of its own, or that of a product.
        multiplier: the number.
    """

    def __init__(self, norm: Norm, multiplier: float) -> None:
        self._norm, self._multiplier = norm, multiplier

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., D]."""
        return self._norm(x).mul_(self._multiplier)


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """Return x itself: the norm of a branch that has none."""
    return x
