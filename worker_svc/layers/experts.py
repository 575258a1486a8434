"""Mixture of experts: a router chooses a few experts that compute each token; a shared expert may compute every token.

Dims: T tokens, C chosen experts.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.mlp import Expert, Mlp
from tetrad.worker_svc.layers.routers import Router

Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function (x [T, hidden], weights [T, C], chosen [T, C]) -> the weighted sum [T, hidden] of the chosen experts' outputs.

A chosen expert of another rank adds nothing here.
"""
MixOf = Callable[[Mapping[int, Expert], int], Mix]
"""Function (experts of a layer by number, number of all experts of the layer) -> their Mix."""


class CountingMixOf(Protocol):
    """A MixOf that counts the tokens of each expert.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of tokens that chose each expert.
    """

    expert_tokens: list[Ints]

    def __call__(self, experts: Mapping[int, Expert], num_experts: int) -> Mix:
        """Return the Mix of a further layer; see MixOf."""


RowScope = Callable[[torch.Tensor], AbstractContextManager[None]]
"""Function (rows [n] of a step) -> context in which linear layers compute only these rows."""


def any_rows(rows: torch.Tensor) -> AbstractContextManager[None]:  # noqa: ARG001 - a RowScope
    """Return a context without effect, for layers without adapters."""
    return nullcontext()


class HostMixes:
    """Creates the Mix of each layer on the host, which counts the tokens of each expert.

    Args:
        among: sets the rows that the experts' linear layers compute.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of tokens that each expert has computed.
    """

    def __init__(self, among: RowScope = any_rows) -> None:
        self._among = among
        self.expert_tokens: list[Ints] = []

    def __call__(self, experts: Mapping[int, Expert], num_experts: int) -> Mix:
        """Return the Mix of a further layer; see MixOf."""
        self.expert_tokens.append(np.zeros(num_experts, np.int64))
        return ChosenExperts(experts, self.expert_tokens[-1], self._among)


class ChosenExperts:
    """A Mix in which each expert computes the tokens that chose it. It waits for the choice, so it is used on the host.

    Args:
        experts: the experts of a layer, by number.
        counts: [all experts], counters of the tokens that chose each expert, which each call increases.
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
    """A Mix in which each expert computes all tokens; its output is used only for tokens that chose it.

    It does not wait for the choice, so a graph can record it.

    Args:
        experts: this rank's experts of a layer, by number.
        num_experts: number of all experts of the layer.
    """

    def __init__(self, experts: Mapping[int, Mlp], num_experts: int) -> None:
        self._experts, self._num_experts = experts, num_experts

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix."""
        shares = torch.zeros(len(x), self._num_experts, dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
        mixed = torch.zeros_like(x)
        for number, expert in self._experts.items():
            share = shares[:, number, None]
            # An expert may overflow for tokens that did not choose it, and infinity times 0 is not a number.
            mixed.add_((expert(x) * share.to(x.dtype)).masked_fill_(share == 0, 0))
        return mixed


class MixedExperts:
    """A mixture of experts; see Mlp.

    Args:
        router: chooses the experts of each token.
        mix: computes the chosen experts.
    """

    def __init__(self, router: Router, mix: Mix) -> None:
        self._router, self._mix = router, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(x, weights, chosen)


class InputWeighted:
    """A mixture of experts in which one expert computes each token times the expert's weight (Llama 4); see Mlp.

    Args:
        router, mix: see MixedExperts; the router chooses one expert.
    """

    def __init__(self, router: Router, mix: Mix) -> None:
        self._router, self._mix = router, mix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        weights, chosen = self._router(x)
        return self._mix(x * weights.to(x.dtype), torch.ones_like(weights), chosen)


class WithShared:
    """Experts, plus a shared expert that computes every token; see Mlp.

    Args:
        experts: the mixture of experts.
        shared: the shared expert.
        gate: [hidden] -> [1]; its sigmoid multiplies the shared expert's output; None: no gate.
    """

    def __init__(self, experts: Mlp, shared: Mlp, gate: Linear | None) -> None:
        self._experts, self._shared, self._gate = experts, shared, gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, hidden]."""
        shared = self._shared(x)
        if self._gate is not None:
            shared = shared * self._gate(x).sigmoid()
        return self._experts(x).add_(shared)
