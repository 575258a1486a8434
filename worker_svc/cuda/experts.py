"""Mixtures of experts on a device: computes the products of all chosen experts in two launches.

Called by the torch decoder when it builds a layer. The weights of a layer's experts are stacked; the tensors of each expert
become views of the stack, so that they are stored once. Experts whose weights have different forms compute all tokens
(layers/experts.py). A rank may have some of the experts: every rank has all tokens and computes its own experts for them, and
the results of all ranks are summed.
Dims: T tokens, C chosen experts per token.
"""

from collections.abc import Mapping, Sequence

import torch

from tetrad.worker_svc.kernels.expert_groups import group_pairs
from tetrad.worker_svc.kernels.expert_matmul import first_product, rows_of_tiles, second_product
from tetrad.worker_svc.kernels.expert_weights import ExpertWeights, stacked
from tetrad.worker_svc.layers.experts import AllExperts, Mix
from tetrad.worker_svc.layers.linear import Linear, PlainLinear
from tetrad.worker_svc.layers.mlp import Expert
from tetrad.worker_svc.quantization.matrix import Stackable

_PAIRS_AT_ONCE = 8192
"""Number of pairs (token, expert) that are computed at once; a pair's output takes 4 bytes per element of a hidden state."""


def mix_of(experts: Mapping[int, Expert], num_experts: int) -> Mix:
    """Return the computation of a layer's experts, which have consecutive numbers; see MixOf."""
    numbers = sorted(experts)
    every = [experts[number] for number in numbers]
    into, down = _weights_of([each.into for each in every]), _weights_of([each.down for each in every])
    if into is None or down is None:
        return AllExperts(experts, num_experts)
    of_into, of_down = stacked(into), stacked(down)
    if of_into is None or of_down is None:
        return AllExperts(experts, num_experts)
    return GroupedExperts(every[0], of_into, of_down, range(numbers[0], numbers[-1] + 1), num_experts)


class GroupedExperts:
    """A Mix in which each expert computes the tokens that chose it; each product is one launch for all experts.

    Args:
        expert: any of the experts; they have the same activation.
        into, down: the first and the last products of this rank's experts.
        own: the numbers of these experts.
        num_experts: number of all experts of the layer.
    """

    def __init__(self, expert: Expert, into: ExpertWeights, down: ExpertWeights, own: range, num_experts: int) -> None:
        self._expert, self._own, self._num_experts = expert, own, num_experts
        self._into, self._down = into, down

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix."""
        at_once = max(_PAIRS_AT_ONCE // chosen.shape[1], 1)
        pieces = [slice(start, start + at_once) for start in range(0, len(x), at_once)]
        mixed = [self._mixed(x[piece], weights[piece], chosen[piece]) for piece in pieces]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        num_own, are_all = len(self._own), len(self._own) == self._num_experts
        local = chosen if are_all else _local(chosen, self._own)
        groups = group_pairs(local.contiguous(), num_own, rows_of_tiles(chosen.numel(), self._num_experts))
        inner = first_product(x, self._into, groups, chosen.shape[1])
        factors = weights.float().flatten()
        outputs = second_product(self._expert.between(inner), self._down, groups, factors, are_all=are_all)
        return outputs.view(*chosen.shape, -1).sum(1).to(x.dtype)


def _local(chosen: torch.Tensor, own: range) -> torch.Tensor:
    """Return the places of experts [T, C] among `own`; the number of `own` for all others."""
    return torch.where((chosen >= own.start) & (chosen < own.stop), chosen - own.start, len(own))


def _weights_of(linears: Sequence[Linear]) -> list[ExpertWeights] | None:
    """Return the weights of each layer; None if one of them has none that can be stacked."""
    weights = [
        ExpertWeights(each.weight, each.bias)
        if isinstance(each, PlainLinear)
        else each.weights()
        if isinstance(each, Stackable)
        else None
        for each in linears
    ]
    known = [each for each in weights if each is not None]
    return known if len(known) == len(linears) else None
