"""Routers: choose the experts that compute each token, and their weights.

Dims: T tokens, E experts, C chosen experts. Scores and weights are float32.
"""

from collections.abc import Callable, Mapping

import torch

from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.model_facts.config import Experts

Choice = tuple[torch.Tensor, torch.Tensor]
"""Weights [T, C] float32 and experts [T, C]."""


class Router:
    """Scores all experts and chooses some of them for each token.

    Args:
        scores: [hidden] -> [E].
        correction: [E], added to scores for the choice only, not for the weights; None: no correction.
        config: the parameters of the choice.
    """

    def __init__(self, scores: Linear, correction: torch.Tensor | None, config: Experts) -> None:
        self._scores, self._correction, self._config = scores, correction, config
        self._choose = _CHOICES[config.router]

    def __call__(self, x: torch.Tensor) -> Choice:
        """Return the choice for each token of x [T, hidden]."""
        weights, chosen = self._choose(self._scores(x).float(), self._correction, self._config)
        if self._config.is_renormalized:
            weights = weights / (weights.sum(-1, keepdim=True) + _LEAST)
        return weights * self._config.scale, chosen


_LEAST = 1e-20


def _softmax(scores: torch.Tensor, correction: torch.Tensor | None, config: Experts) -> Choice:  # noqa: ARG001 - one signature
    weights, chosen = scores.softmax(-1).topk(config.num_chosen, -1)
    return weights, chosen


def _softmax_chosen(scores: torch.Tensor, correction: torch.Tensor | None, config: Experts) -> Choice:  # noqa: ARG001 - one signature
    weights, chosen = scores.topk(config.num_chosen, -1)
    return weights.softmax(-1), chosen


def _sigmoid(scores: torch.Tensor, correction: torch.Tensor | None, config: Experts) -> Choice:  # noqa: ARG001 - one signature
    weights, chosen = scores.topk(config.num_chosen, -1)
    return weights.sigmoid(), chosen


def _grouped_softmax(scores: torch.Tensor, correction: torch.Tensor | None, config: Experts) -> Choice:  # noqa: ARG001 - one signature
    """Choose experts as in DeepSeek V2: a group's score is that of its best expert."""
    weights = scores.softmax(-1)
    best = weights.view(len(scores), config.num_groups, -1).amax(-1)
    return _of_groups(weights, weights, best, config, hidden=0.0)


def _grouped_sigmoid(scores: torch.Tensor, correction: torch.Tensor | None, config: Experts) -> Choice:
    """Choose experts as in DeepSeek V3: a group's score is the sum of its best two; a correction balances the experts' load."""
    weights = scores.sigmoid()
    corrected = weights if correction is None else weights + correction
    best = corrected.view(len(scores), config.num_groups, -1).topk(2, -1)[0].sum(-1)
    return _of_groups(weights, corrected, best, config, hidden=-torch.inf)


def _of_groups(weights: torch.Tensor, scores: torch.Tensor, best: torch.Tensor, config: Experts, *, hidden: float) -> Choice:
    """Return the experts with the largest scores [T, E] in the groups with the largest scores `best` [T, groups]."""
    groups = best.topk(config.num_chosen_groups, -1)[1]
    is_open = torch.zeros_like(best, dtype=torch.bool).scatter_(1, groups, True)
    is_open = is_open.repeat_interleave(scores.shape[1] // config.num_groups, 1)
    chosen = scores.masked_fill(~is_open, hidden).topk(config.num_chosen, -1)[1]
    return weights.gather(1, chosen), chosen


_CHOICES: Mapping[str, Callable[[torch.Tensor, torch.Tensor | None, Experts], Choice]] = {
    "softmax": _softmax,
    "softmax_chosen": _softmax_chosen,
    "sigmoid_input": _sigmoid,
    "grouped_softmax": _grouped_softmax,
    "grouped_sigmoid": _grouped_sigmoid,
}
