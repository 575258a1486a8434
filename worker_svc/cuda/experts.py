"""Mixtures of experts on a device: computes the products of all chosen experts in two launches, if their weights are floats.

Called by the torch decoder when it builds a layer. The weights of a layer's experts are stacked in one tensor; each expert's
weights become views of it, so that they are stored once. Quantized experts compute all tokens (layers/experts.py).
Dims: T tokens, C chosen experts per token.
"""

from collections.abc import Mapping, Sequence

import torch

from tetrad.worker_svc.kernels.expert_groups import group_pairs
from tetrad.worker_svc.kernels.expert_matmul import first_product, rows_of_tiles, second_product
from tetrad.worker_svc.layers.experts import AllExperts, Mix
from tetrad.worker_svc.layers.linear import Linear, PlainLinear
from tetrad.worker_svc.layers.mlp import Expert

_PAIRS_AT_ONCE = 8192
"""Number of pairs (token, expert) that are computed at once; a pair's output takes 4 bytes per element of a hidden state."""


def mix_of(experts: Mapping[int, Expert], num_experts: int) -> Mix:  # noqa: ARG001 - of the signature; a device has all experts
    """Return the computation of a layer's experts; see MixOf."""
    every = [experts[number] for number in sorted(experts)]
    into, down = _plain([each.into for each in every]), _plain([each.down for each in every])
    return AllExperts(experts) if into is None or down is None else GroupedExperts(every[0], into, down)


class GroupedExperts:
    """A Mix in which each expert computes the tokens that chose it; each product is one launch for all experts.

    Args:
        expert: any of the experts; they have the same activation.
        into, down: the first and the last products of all experts.
    """

    def __init__(self, expert: Expert, into: Sequence[PlainLinear], down: Sequence[PlainLinear]) -> None:
        self._expert, self._num_experts = expert, len(into)
        self._into, self._down = _Stack(into), _Stack(down)

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See Mix."""
        at_once = max(_PAIRS_AT_ONCE // chosen.shape[1], 1)
        pieces = [slice(start, start + at_once) for start in range(0, len(x), at_once)]
        mixed = [self._mixed(x[piece], weights[piece], chosen[piece]) for piece in pieces]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _mixed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        groups = group_pairs(chosen.contiguous(), self._num_experts, rows_of_tiles(chosen.numel(), self._num_experts))
        inner = first_product(x, self._into.weight, self._into.bias, groups, chosen.shape[1])
        factors = weights.float().flatten()
        outputs = second_product(self._expert.between(inner), self._down.weight, self._down.bias, groups, factors)
        return outputs.view(*chosen.shape, -1).sum(1).to(x.dtype)


class _Stack:
    """The stacked weights of one product of all experts.

    Attributes:
        weight: [experts, outputs, inputs].
        bias: [experts, outputs] or None.

    Args:
        linears: the layers of the experts; their tensors become views of the stack.
    """

    def __init__(self, linears: Sequence[PlainLinear]) -> None:
        biases = [each.bias for each in linears if each.bias is not None]
        self.weight = _stacked([each.weight for each in linears])
        self.bias = _stacked(biases) if biases else None


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape; the tensors become views of the stack, and their own memory is freed."""
    stack = torch.stack(list(tensors))
    for tensor, row in zip(tensors, stack, strict=True):
        tensor.set_(row)
    return stack


def _plain(linears: Sequence[Linear]) -> list[PlainLinear] | None:
    """Return the layers if all weights are floats of one shape, and all or none have a bias; otherwise None."""
    plain = [each for each in linears if isinstance(each, PlainLinear)]
    if len(plain) < len(linears):
        return None
    kinds = {(each.weight.shape, each.weight.dtype, each.bias is None) for each in plain}
    return plain if len(kinds) == 1 else None
