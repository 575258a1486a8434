"""Summed layers: attention and MLP whose last products are split over their inputs, so that results are sums over ranks."""

from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.layers.attention import Attention
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.step import Step


class SummedAttention(Generic[M]):
    """See Attention.

    Args:
        attention: of this rank's heads.
        ranks: all of them.
    """

    def __init__(self, attention: Attention[M], ranks: Collectives) -> None:
        self._attention, self._ranks = attention, ranks

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, step: Step, metadata: M) -> torch.Tensor:
        """Return [T, hidden]."""
        return self._ranks.sum_(self._attention(x, cache, step, metadata))


class SummedMlp:
    """See Mlp.

    Args:
        mlp: this rank's part, be it a mixture of experts.
        ranks: all of them.
    """

    def __init__(self, mlp: Mlp, ranks: Collectives) -> None:
        self._mlp, self._ranks = mlp, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        return self._ranks.sum_(self._mlp(x))


class SummedRmsNorm:
    """An RMS norm over values that ranks have parts of.

    Args:
        weight: [n], of this rank's values.
        eps: of the norm.
        ranks: all of them.
    """

    def __init__(self, weight: torch.Tensor, eps: float, ranks: Collectives) -> None:
        self._weight, self._eps, self._ranks = weight, eps, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, n] for x [T, n]."""
        values = x.float()
        # Ranks have equally many values, and where several have the same ones, all of these are there equally often.
        mean = self._ranks.sum_(values.square().mean(-1, keepdim=True)) / self._ranks.shard.size
        return (values * torch.rsqrt(mean + self._eps)).to(x.dtype) * self._weight
