"""Mixture of experts: each token is computed by the few experts that a router chooses, and perhaps by a shared one.

Dims: T tokens, C chosen experts.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Mlp
from tetrad.worker_svc.layers.routers import Router

Mix = Callable[[Mapping[int, Mlp], torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(experts by number, x [T, hidden], weights [T, C], chosen [T, C]) -> the weighted sum [T, hidden] of those chosen.

A chosen expert that is not among these is another rank's, and adds nothing here.
"""
MixOf = Callable[[int], Mix]
"""Number of a layer's experts -> what computes them."""


class HostMixes:
    """Makes what computes the experts of each layer on the host; it counts their tokens.

    Attributes:
        expert_tokens: of each layer with experts, [experts]: tokens that each has computed.
    """

    def __init__(self) -> None:
        self.expert_tokens: list[Ints] = []

    def __call__(self, num_experts: int) -> Mix:
        """Return what computes the experts of one more layer."""
        counts = np.zeros(num_experts, np.int64)
        self.expert_tokens.append(counts)
        return partial(_mix_chosen, counts)


def _mix_chosen(
    counts: Ints, experts: Mapping[int, Mlp], x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """Each expert computes the tokens that chose it. Waits for the choice, so it is the host's."""
    mixed = torch.zeros_like(x)
    tokens = np.bincount(chosen.numpy().ravel(), minlength=len(counts))
    counts += tokens
    for number in filter(experts.__contains__, np.flatnonzero(tokens).tolist()):
        rows, places = (chosen == number).nonzero(as_tuple=True)
        mixed.index_add_(0, rows, experts[number](x[rows]).mul_(weights[rows, places, None]))
    return mixed


def all_mixes(num_experts: int) -> Mix:  # noqa: ARG001 - of the signature
    """Return what computes a layer's experts on a GPU."""
    return _mix_all


def _mix_all(experts: Mapping[int, Mlp], x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Each expert computes all tokens, and counts where it was chosen. Nothing is waited for, so a graph can record it."""
    shares = torch.zeros(len(x), len(experts), dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
    mixed = torch.zeros_like(x)
    for number, expert in experts.items():
        mixed.add_(expert(x) * shares[:, number, None].to(x.dtype))
    return mixed


class MixedExperts:
    """See Mlp.

    Args:
        router: chooses.
        experts: by number.
        mix: computes those that are chosen.
    """

    def __init__(self, router: Router, experts: Mapping[int, Mlp], mix: Mix) -> None:
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

    def __init__(self, router: Router, experts: Mapping[int, Mlp], mix: Mix) -> None:
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
