"""Summed layers: sum the results of attention and MLP over ranks, because the inputs of their last products are split."""

from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.layers.attention import Attention
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.step import Step


class SummedAttention(Generic[M]):
    """Attention whose output is summed over ranks; see Attention.

    Args:
        attention: the attention of this rank's heads.
        ranks: the sums over all ranks.
    """

    def __init__(self, attention: Attention[M], ranks: Collectives) -> None:
        self._attention, self._ranks = attention, ranks

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, step: Step, metadata: M) -> torch.Tensor:
        """Return [T, hidden]."""
        return self._ranks.sum_(self._attention(x, cache, step, metadata))


class SummedMlp:
    """An MLP whose output is summed over ranks; see Mlp.

    Args:
        mlp: this rank's part of an MLP or of a mixture of experts.
        ranks: the sums over all ranks.
    """

    def __init__(self, mlp: Mlp, ranks: Collectives) -> None:
        self._mlp, self._ranks = mlp, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        return self._ranks.sum_(self._mlp(x))


class SummedRmsNorm:
    """An RMS norm over values that are divided among ranks.

    Args:
        weight: [n], the weights of this rank's values.
        eps: epsilon of the norm.
        ranks: the sums over all ranks.
    """

    def __init__(self, weight: torch.Tensor, eps: float, ranks: Collectives) -> None:
        self._weight, self._eps, self._ranks = weight, eps, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x [T, n]."""
        values = x.float()
        # All ranks have the same number of values; if several ranks share values, all values are shared equally often.
        mean = self._ranks.sum_(values.square().mean(-1, keepdim=True)) / self._ranks.shard.size
        return (values * torch.rsqrt(mean + self._eps)).to(x.dtype) * self._weight
