"""RMSNorm: x / rms(x) * weight over the last dimension."""

import torch
import torch.nn.functional as F  # noqa: N812


class RmsNorm:
    """Root-mean-square norm; keeps the type of its input.

    Args:
        weight: [D].
        eps: added to the mean square.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._shape, self._eps = weight, tuple(weight.shape), eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [..., D]."""
        return F.rms_norm(x, self._shape, self._weight, self._eps)
