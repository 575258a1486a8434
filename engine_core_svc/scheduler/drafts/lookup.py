"""LookupDrafts: proposes tokens found in known texts, as many as pay for their time in a step.

Made by the service, called by Drafting. Each request has its own proposer, chosen at its arrival, which reads the request's
tokens as they grow; a request without a proposer gets no drafts. Judgement chooses the number of drafts by the share of
proposals that equal the generated tokens, and by the measured time of steps.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.drafts.acceptance import Acceptance, Prior
from tetrad.engine_core_svc.scheduler.drafts.judgement import Proposal, may_pay, worthwhile
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.prediction import Prediction
from tetrad.engine_core_svc.scheduler.drafts.step_prices import StepPrices


class Proposer(Protocol):
    """Finds tokens that may follow those of one request."""

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return up to `num_tokens` tokens that may follow `token_ids`, which begin with those of the call before."""


ChooseProposer = Callable[[Request], Proposer | None]
"""Returns a new proposer for a request; None: the request gets no drafts."""


def prediction_of(request: Request) -> Proposer | None:
    """Return the proposer of a request with a predicted output; None for other requests."""
    return Prediction(request.predicted_ids, request.num_prompt_tokens) if request.predicted_ids else None


class LookupDrafts:
    """Drafts from known texts; see Drafts.

    Args:
        choose: returns the proposer of a request.
        max_tokens: maximum number of drafts of a request in one step.
        most_beside: number of requests that decode -> maximum number of drafts of each; None: max_tokens.
        keep: stores a finished request, whose output later requests may repeat.
    """

    def __init__(
        self,
        choose: ChooseProposer,
        max_tokens: int,
        most_beside: Callable[[int], int] | None = None,
        keep: Callable[[Request], None] = lambda _: None,
    ) -> None:
        self.max_tokens, self._keep = max_tokens, keep
        self._choose, self._most_beside = choose, most_beside or (lambda _: max_tokens)
        self._prices = StepPrices()
        self._prior = Prior()

    def admits(self, request: Request) -> bool:
        """Choose the request's proposer; return whether it has one."""
        proposer = self._choose(request)
        request.draft_state = None if proposer is None else _State(proposer, Acceptance(self._prior))
        return proposer is not None

    def num_from_worker(self, num_requests: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0: the worker proposes nothing."""
        return 0

    def observe(self, step: MeasuredStep) -> None:
        """Learn the cost of a step."""
        self._prices.observe(step.num_rows, step.compute_s)
        if step.gap_s is not None:
            gap = self._prices.waiting_gap if step.waited else self._prices.ahead_gap
            gap.observe(step.gap_s)

    def note_finished(self, requests: Sequence[Request]) -> None:
        """Store the outputs of finished requests, if the service has an option for it."""
        for request in requests:
            self._keep(request)

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> dict[int, Sequence[int]]:  # noqa: ARG002 - of the protocol
        """Return the drafts that pay for their time, by request key."""
        num_requests = len(requests)
        drafted = [
            (request.key, request.token_ids, state) for request in requests if isinstance(state := request.draft_state, _State)
        ]
        most = min(self.max_tokens, self._most_beside(num_requests)) if drafted else 0
        if not most or not may_pay(self._prices, num_requests):
            return {}
        proposals = {key: state.propose(token_ids, most) for key, token_ids, state in drafted}
        return worthwhile(proposals, num_requests, self._prices)


class _State:
    """The drafting state of one request.

    Args:
        proposer: the request's own proposer.
        acceptance: the acceptance of its proposals.
    """

    __slots__ = ("_acceptance", "_proposer")

    def __init__(self, proposer: Proposer, acceptance: Acceptance) -> None:
        self._proposer, self._acceptance = proposer, acceptance

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Proposal:
        """Compare the last proposal with the tokens that have arrived since, and make the next proposal."""
        self._acceptance.compare(token_ids)
        draft_ids = self._proposer.propose(token_ids, num_tokens)
        self._acceptance.expect(len(token_ids), draft_ids)
        return Proposal(draft_ids, self._acceptance.probability)
