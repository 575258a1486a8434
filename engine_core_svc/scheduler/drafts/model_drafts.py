"""ModelDrafts: uses the tokens that a draft model, or a head of the model, proposes on the worker, where steps get faster.

Made by the service, called by Drafting. A result contains the drafts that the next plan verifies. Requests with a prediction
get the predicted text's tokens instead.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.speculative_config import SpeculativeConfig
from tetrad.engine_core_svc.scheduler.drafts.lookup import LookupDrafts
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison


class ModelDrafts:
    """Drafts from the worker; see Drafts.

    Args:
        config: the limits of drafts.
        predictions: proposes drafts for the requests with a prediction.
    """

    def __init__(self, config: SpeculativeConfig, predictions: LookupDrafts) -> None:
        self.max_tokens = config.num_speculative_tokens
        self._config, self._predictions = config, predictions
        self._rates = RateComparison()
        self._step: MeasuredStep | None = None
        self._had_proposals = False

    def admits(self, request: Request) -> bool:
        """Return True: the worker proposes drafts for every request."""
        self._predictions.admits(request)
        return True

    def num_from_worker(self, num_requests: int) -> int:
        """Return how many drafts the worker proposes; 0 where plain steps are faster."""
        return self._config.most_tokens(num_requests) if self._rates.pays(num_requests) else 0

    def observe(self, step: MeasuredStep) -> None:
        """Learn the cost of a step."""
        self._predictions.observe(step)
        self._step = step

    def note_finished(self, requests: Sequence[Request]) -> None:
        """Do nothing: the worker forgets finished requests by itself."""

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> dict[int, Sequence[int]]:
        """Return the drafts by request key."""
        self._compare(result)
        proposals = dict(result.draft_tokens)
        if any(request.predicted_ids for request in requests):
            proposals |= self._predictions.propose(requests, result)
        return proposals

    def _compare(self, result: ModelRunnerOutput) -> None:
        step, self._step = self._step, None
        # A worker may have nothing to propose, for example beyond a head's largest position; its step costs as much.
        drafted, had_proposals = bool(result.draft_tokens) or (step is not None and step.asks), self._had_proposals
        self._had_proposals = drafted
        # A step between the two kinds has the costs of one and the tokens of the other.
        if step is not None and drafted == had_proposals:
            num_tokens, seconds = sum(map(len, result.token_ids)), step.compute_s + (step.gap_s or 0.0)
            self._rates.note(len(result.keys), num_tokens, seconds, drafted=drafted, draft_s=result.draft_s)
        elif result.draft_s:
            self._rates.note_behind(result.draft_s)
