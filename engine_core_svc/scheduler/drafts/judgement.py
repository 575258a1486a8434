"""Judgement: decides how many drafts each request gets, so that steps with drafts yield more tokens per second than without.

The draft at position i yields p ** i tokens on average, where p is the measured acceptance, and costs one row of the step. It
pays if these tokens per second exceed those of plain steps. Besides, plans with drafts wait for the results before them, and in
a pipeline their steps do not overlap: the drafts of a step together must pay for that as well. Where arithmetic limits the
steps, in large batches, no drafts pay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.scheduler.drafts.step_prices import StepPrices

_MARGIN = 1.1
"""Minimum of the expected tokens per second, relative to plain steps. It is above 1 because the highest of several noisy
estimates is usually too high."""
_BEST_PROBABILITY = 0.98
"""Highest assumed probability of a draft; if even such drafts do not pay, no proposals are computed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The drafts of one request, and the probability that a draft is right if those before it are right."""

    draft_ids: Sequence[int]
    probability: float


def may_pay(prices: StepPrices, num_requests: int) -> bool:
    """Return whether any draft can pay in a step of `num_requests` requests."""
    return _least_probability(prices, num_requests) < _BEST_PROBABILITY


def worthwhile(proposals: Mapping[int, Proposal], num_requests: int, prices: StepPrices) -> dict[int, Sequence[int]]:
    """Return the drafts to verify, by request key; none if they do not pay for themselves.

    Args:
        proposals: proposals by request key.
        num_requests: number of requests that decode, with or without proposals.
        prices: measured costs of steps.
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
    plain_s = _plain_s(prices, num_requests)
    step_s = alone_s + max(prices.waiting_gap.seconds, prices.ahead_gap.seconds) + prices.row_s * num_drafts
    pays = (num_requests + num_expected) * plain_s > _MARGIN * num_requests * step_s
    return chosen if pays else {}


def _least_probability(prices: StepPrices, num_requests: int) -> float:
    """Return the number of tokens that plain steps yield in the time of one row; 1 until a step was measured."""
    plain_s = _plain_s(prices, num_requests)
    return prices.row_s * num_requests / plain_s if plain_s else 1.0


def _plain_s(prices: StepPrices, num_requests: int) -> float:
    """Return the seconds between the results of plain steps; 0 until a step was measured."""
    step_s = prices.step_s(num_requests)
    return max(step_s + prices.ahead_gap.seconds, 0.0) if step_s else 0.0
