"""Judgement: decides how many drafts each request gets, so that a step brings more tokens for its time than one without.

A draft in place i brings p ** i tokens in the mean, p being the measured acceptance, and costs a row of the step. It is worth
it while that brings tokens faster than plain steps do. Besides, plans with drafts wait for the results before them: the drafts
of a step together must pay for that as well. Where steps are bound by arithmetic, in large batches, none are worth it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.scheduler.drafts.step_prices import StepPrices

_MARGIN = 1.1
"""Tokens in a time that drafts must promise, relative to plain steps: estimates are noisy, and the best look best by chance."""
_BEST_PROBABILITY = 0.98
"""Where even such drafts do not pay, nothing needs to be looked for."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of one request, and the probability that each is right if those before it are."""

    draft_ids: Sequence[int]
    probability: float


def may_pay(prices: StepPrices, num_requests: int) -> bool:
    """Return whether any draft can pay beside so many requests."""
    return _least_probability(prices, num_requests) < _BEST_PROBABILITY


def worthwhile(proposals: Mapping[int, Proposal], num_requests: int, prices: StepPrices) -> dict[int, Sequence[int]]:
    """Return the drafts to verify, by request key; none if they do not pay for themselves.

    Args:
        proposals: by request key.
        num_requests: that decode, with proposals or without.
        prices: of steps.
    """
    least = _least_probability(prices, num_requests)
    chosen: dict[int, Sequence[int]] = {}
    num_expected, num_drafts = 0.0, 0
    for key, proposal in proposals.items():
        right, num_worth = proposal.probability, 0
        while right > least and num_worth < len(proposal.draft_ids):
            num_expected += right
            num_worth += 1
            right *= proposal.probability
        if num_worth:
            chosen[key] = proposal.draft_ids[:num_worth]
            num_drafts += num_worth
    alone_s = prices.step_s(num_requests)
    plain_s = alone_s + prices.ahead_gap.seconds
    step_s = alone_s + max(prices.waiting_gap.seconds, prices.ahead_gap.seconds) + prices.row_s * num_drafts
    pays = (num_requests + num_expected) * plain_s > _MARGIN * num_requests * step_s
    return chosen if pays else {}


def _least_probability(prices: StepPrices, num_requests: int) -> float:
    """Return the tokens that plain steps bring in the time of a row; 1 as long as no step was measured."""
    plain_s = prices.step_s(num_requests)
    return prices.row_s * num_requests / (plain_s + prices.ahead_gap.seconds) if plain_s else 1.0
