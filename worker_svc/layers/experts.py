"""Mixture of experts: each token is computed by the few experts that a router chooses, and perhaps by a shared one.

Dims: T tokens, C chosen experts.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.routers import Router

Mix = Callable[[Sequence[Mlp], torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(experts, x [T, hidden], weights [T, C], chosen [T, C]) -> the weighted sum [T, hidden] of the chosen experts' outputs."""


def mix_chosen(experts: Sequence[Mlp], x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each expert computes the tokens that chose it. Waits for the choice, so it is the host's."""
    mixed = torch.zeros_like(x)
    for number in np.unique(chosen.numpy()).tolist():
        rows, places = (chosen == number).nonzero(as_tuple=True)
        mixed.index_add_(0, rows, experts[number](x[rows]).mul_(weights[rows, places, None]))
    return mixed


def mix_all(experts: Sequence[Mlp], x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each expert computes all tokens, and counts where it was chosen. Nothing is waited for, so a graph can record it."""
    shares = torch.zeros(len(x), len(experts), dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
    mixed = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        mixed.add_(expert(x) * shares[:, number, None].to(x.dtype))
    return mixed


class MixedExperts:
    """See Mlp.

    Args:
        router: chooses.
        experts: all of them.
        mix: computes those that are chosen.
    """

    def __init__(self, router: Router, experts: Sequence[Mlp], mix: Mix) -> None:
        self._router, self._experts, self._mix = router, experts, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(self._experts, x, weights, chosen)


class InputWeighted:
    """An expert for each token, which computes the token times its weight (Llama 4); see Mlp.

    Args:
        router, experts, mix: as of MixedExperts; the router chooses one.
    """

    def __init__(self, router: Router, experts: Sequence[Mlp], mix: Mix) -> None:
        self._router, self._experts, self._mix = router, experts, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(self._experts, x * weights.to(x.dtype), torch.ones_like(weights), chosen)


class WithShared:
    """Experts beside an MLP that computes every token; see Mlp.

    Args:
        experts: the chosen ones.
        shared: the MLP.
        gate: [hidden] -> [1], whose sigmoid multiplies the MLP's output; None: nothing does.
    """

    def __init__(self, experts: Mlp, shared: Mlp, gate: Linear | None) -> None:
        self._experts, self._shared, self._gate = experts, shared, gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        shared = self._shared(x)
        if self._gate is not None:
            shared = shared * self._gate(x).sigmoid()
        return self._experts(x).add_(shared)
