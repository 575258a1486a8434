"""Mixture of experts: each token is computed by the few experts that a router chooses, and perhaps by a shared one.

Dims: T tokens, C chosen experts.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Expert, Mlp
from tetrad.worker_svc.layers.routers import Router

Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(x [T, hidden], weights [T, C], chosen [T, C]) -> the weighted sum [T, hidden] of the chosen experts' outputs.

A chosen expert that another rank has adds nothing here.
"""
MixOf = Callable[[Mapping[int, Expert], int], Mix]
"""(experts of a layer by number, number of all experts of the layer) -> their Mix."""


RowScope = Callable[[torch.Tensor], AbstractContextManager[None]]
"""Rows [n] of a step -> while it is entered, linear layers compute these rows."""


def any_rows(rows: torch.Tensor) -> AbstractContextManager[None]:  # noqa: ARG001 - a RowScope
    """Return a scope of layers that compute all rows alike."""
    return nullcontext()


class HostMixes:
    """Makes what computes the experts of each layer on the host; it counts their tokens.

    Args:
        among: tells the experts' linear layers which rows they compute.

    Attributes:
        expert_tokens: of each layer with experts, [experts]: tokens that each has computed.
    """

    def __init__(self, among: RowScope = any_rows) -> None:
        self._among = among
        self.expert_tokens: list[Ints] = []

    def __call__(self, experts: Mapping[int, Expert], num_experts: int) -> Mix:
        """Return the Mix of one more layer; see MixOf."""
        self.expert_tokens.append(np.zeros(num_experts, np.int64))
        return ChosenExperts(experts, self.expert_tokens[-1], self._among)


class ChosenExperts:
    """A Mix in which each expert computes the tokens that chose it. It waits for the choice, so it is the host's.

    Args:
        experts: of a layer, by number.
        counts: [all experts], the tokens that chose each; they are counted here.
        among: see HostMixes.
    """

    def __init__(self, experts: Mapping[int, Mlp], counts: Ints, among: RowScope = any_rows) -> None:
        self._experts, self._counts, self._among = experts, counts, among

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix."""
        mixed = torch.zeros_like(x)
        tokens = np.bincount(chosen.numpy().ravel(), minlength=len(self._counts))
        self._counts += tokens
        for number in filter(self._experts.__contains__, np.flatnonzero(tokens).tolist()):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            with self._among(rows):
                outputs = self._experts[number](x[rows])
            mixed.index_add_(0, rows, outputs.mul_(weights[rows, places, None]))
        return mixed


class AllExperts:
    """A Mix in which each expert computes all tokens, and counts where it was chosen.

    Nothing is waited for, so a graph can record it.

    Args:
        experts: all of a layer, by number.
    """

    def __init__(self, experts: Mapping[int, Mlp]) -> None:
        self._experts = experts

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix."""
        shares = torch.zeros(len(x), len(self._experts), dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
        mixed = torch.zeros_like(x)
        for number, expert in self._experts.items():
            mixed.add_(expert(x) * shares[:, number, None].to(x.dtype))
        return mixed


class MixedExperts:
    """See Mlp.

    Args:
        router: chooses.
        mix: computes the experts that are chosen.
    """

    def __init__(self, router: Router, mix: Mix) -> None:
        self._router, self._mix = router, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(x, weights, chosen)


class InputWeighted:
    """An expert for each token, which computes the token times its weight (Llama 4); see Mlp.

    Args:
        router, mix: as of MixedExperts; the router chooses one.
    """

    def __init__(self, router: Router, mix: Mix) -> None:
        self._router, self._mix = router, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(x * weights.to(x.dtype), torch.ones_like(weights), chosen)


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
