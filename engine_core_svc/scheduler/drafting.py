"""Drafting: adds draft tokens to plans, and takes back the drafts that results reject (speculative decoding).

Called by the scheduler for each plan, and by Results for each result. A proposer (Drafts) guesses the next tokens of a request.
The worker computes the guesses in the step of the last token, samples at each position, and accepts guesses up to the first
one that differs from its sample. A step yields 1 to k + 1 tokens for a request: the same tokens as without drafts.

- Drafts use the tokens, free blocks and message bytes that a plan leaves unused: they preempt and delay no request.
- A plan with drafts is the only one in flight, as in vLLM's synchronous scheduling: a proposal needs the tokens before it, and
  the next step continues after the accepted drafts. If only requests with drafts waited, they would leave the batch of the
  others. While no drafts are proposed, the scheduler makes plans ahead of results.
- Until the result arrives, drafts count as computed tokens and as placeholders. They are never part of a request's tokens. Only
  these are hashed, so the prefix cache holds no rejected token. The next step uses the blocks of rejected drafts.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tetrad.engine_core_svc.core.draft_metrics import DraftMetrics, MakeMetrics
from tetrad.engine_core_svc.core.plan import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.budget import StepBudget
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.services.log import get_logger

log = get_logger()


class Drafts(Protocol):
    """Proposes tokens: from the requests' own tokens (n-gram, suffix), or from the worker (draft model, EAGLE)."""

    @property
    def max_tokens(self) -> int:
        """The maximum number of drafts of a request in one step; 0: no drafts."""

    def admits(self, request: Request) -> bool:
        """Return whether a new request may get drafts; called once, before its first step."""

    def num_from_worker(self, num_requests: int) -> int:
        """Return how many drafts of a request the worker proposes after a step of `num_requests` requests; 0: none."""

    def observe(self, step: MeasuredStep) -> None:
        """Learn the cost of a step; called before `propose`, for steps without prompts while any request may get drafts."""

    def note_finished(self, requests: Sequence[Request]) -> None:
        """Learn which requests a result has ended; called before `propose`."""

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:
        """Return the tokens that may come next, by request key; requests may be missing.

        While later plans are in flight, the proposals only decide whether the next plan waits for their results.

        Args:
            requests: running requests that got tokens from this result; each one's last token is its newest known token.
            result: the step's result; its `draft_tokens` are the worker's proposals.
        """


class NoDrafts:
    """Proposes no drafts: each step yields one token for a request."""

    max_tokens = 0

    def admits(self, request: Request) -> bool:  # noqa: ARG002 - of the protocol
        """Return False."""
        return False

    def num_from_worker(self, num_requests: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0."""
        return 0

    def observe(self, step: MeasuredStep) -> None:
        """Do nothing."""

    def note_finished(self, requests: Sequence[Request]) -> None:
        """Do nothing."""

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:  # noqa: ARG002 - of the protocol
        """Return no proposals."""
        return {}


_COMPLETE = frozenset({RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED})


@dataclass(slots=True)
class DraftStats:
    """Counts since start: plans of a request with drafts, the planned draft tokens, and the accepted ones.

    `num_accepted_by_place` has one count for each position of a draft in its step.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_by_place: list[int] = field(default_factory=list)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count the drafts of a request in a step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        for place in range(num_accepted):
            self.num_accepted_by_place[place] += 1


@dataclass(frozen=True, slots=True)
class _PlanInFlight:
    """The parts of a plan that drafting needs when its result arrives.

    Attributes:
        num_rows: number of tokens of decoding requests and of drafts.
        is_measured: whether its time shows the cost of rows: it has no prompts.
        waited: whether it was made after the previous result, with no other plan in flight.
        follows: whether it has no new requests, so that it directly continues the step before.
        asks: whether it asks the worker for proposals.
        num_drafts: number of drafts by request key.
    """

    num_rows: int
    is_measured: bool
    waited: bool
    follows: bool
    asks: bool
    num_drafts: Mapping[int, int]


class Drafting:
    """The drafts of one scheduler's requests. While no request may get drafts, plans and results cost nothing here.

    Args:
        drafts: proposes the drafts.
        requests: all unfinished requests, by key.
        kv_cache: allocates the blocks.
        clock: returns monotonic seconds.
        make_metrics: makes the counts of each new request; None: requests have none.

    Attributes:
        awaits_result: whether the next plan must wait for the results of earlier plans.
        stats: see DraftStats.
    """

    def __init__(
        self,
        drafts: Drafts,
        requests: Mapping[int, Request],
        kv_cache: KVCacheManager,
        clock: Callable[[], float] = time.monotonic,
        make_metrics: MakeMetrics | None = None,
    ) -> None:
        self._make_metrics: Callable[[], DraftMetrics | None] = make_metrics or (lambda: None)
        self._drafts, self._requests, self._kv_cache, self._clock = drafts, requests, kv_cache, clock
        self._is_on = drafts.max_tokens > 0
        self._drafted: deque[int] = deque()  # keys of requests that may get drafts; ended ones are removed from the front
        self._in_flight: dict[int, _PlanInFlight] = {}
        self._must_wait = self._was_alone = False
        self._result_at: float | None = None  # time of the last result, if its plan was in _in_flight
        # One count per position from the start, as in vLLM: a metric that appears only after the first draft hides its rate.
        self.stats = DraftStats(num_accepted_by_place=[0] * drafts.max_tokens)

    @property
    def awaits_result(self) -> bool:
        """Whether the next plan must wait: drafts are in flight, asked of the worker, or proposed beside a plan in flight."""
        return self._must_wait and bool(self._in_flight)

    @property
    def plans_alone(self) -> bool:
        """Whether the next plan probably is the only one in flight, as it has drafts or the last one was alone."""
        return bool(self._drafted) and not self._in_flight and (self._must_wait or self._was_alone)

    def set_worker(self, *, verifies_drafts: bool) -> None:
        """Set whether the worker verifies drafts; if not, plans have no drafts."""
        self._is_on = verifies_drafts and self._drafts.max_tokens > 0
        if self._drafts.max_tokens and not verifies_drafts:
            log.warning("drafts.off", reason="The worker does not announce that it verifies draft tokens.")

    def add_request(self, request: Request) -> None:
        """Note a new request."""
        request.draft_metrics = self._make_metrics()
        if self._drafts.admits(request):
            self._drafted.append(request.key)
            if len(self._drafted) > 2 * len(self._requests):  # ended ones pile up behind one that lasts
                self._drafted = deque(key for key in self._drafted if key in self._requests)

    def add_drafts(self, plan: SchedulerOutput, budget: StepBudget) -> None:
        """Add the drafts proposed for the plan's requests, as far as tokens, blocks and message bytes allow."""
        while self._drafted and self._drafted[0] not in self._requests:
            self._drafted.popleft()
        if not self._is_on or not self._drafted or not plan.num_requests:
            return
        plan.num_spec_tokens = self._drafts.num_from_worker(plan.num_requests)
        num_drafts: dict[int, int] = {}
        for row, key in enumerate(plan.cached_requests.keys):
            request = self._requests[key]
            if request.draft_ids and (num_added := self._add(request, row, plan, budget)):
                num_drafts[key] = num_added
        if plan.num_spec_tokens:
            self._extend_ahead(plan)
        self._must_wait = self._was_alone = bool(num_drafts or plan.num_spec_tokens)
        self._in_flight[plan.step_id] = _PlanInFlight(
            num_rows=plan.total_num_scheduled_tokens,
            is_measured=not budget.num_prompt_tokens,
            waited=not self._in_flight,
            follows=not plan.new_requests,
            asks=plan.num_spec_tokens > 0,
            num_drafts=num_drafts,
        )

    def settle(self, result: ModelRunnerOutput) -> None:
        """Take back the drafts that the result rejects: their positions are computed again, with other tokens."""
        plan = self._in_flight.pop(result.step_id, None)
        if plan is None:
            self._result_at = None
            return
        self._measure(plan, result.compute_s)
        if plan.num_drafts:
            rows = dict(zip(result.keys, result.token_ids, strict=True))
            for key, num_drafts in plan.num_drafts.items():
                request, row = self._requests.get(key), rows.get(key)
                if request is not None and row is not None:  # else the request ended while the step ran, or fails in it
                    self._settle(request, num_drafts, num_accepted=len(row) - 1)

    def propose(self, outputs: Sequence[EngineCoreOutput], result: ModelRunnerOutput) -> None:
        """Store proposals of next tokens for the requests that continue."""
        if not self._is_on or not self._drafted:
            return
        requests = [output.request for output in outputs if output.request.status is RequestStatus.RUNNING]
        if finished := [output.request for output in outputs if output.request.status in _COMPLETE]:
            self._drafts.note_finished(finished)
        proposals = self._drafts.propose(requests, result)
        for request in requests:
            # Earlier proposals followed an earlier token. Results of other requests may have arrived since.
            if proposals or request.draft_ids:
                request.draft_ids = proposals.get(request.key, ())[: self._drafts.max_tokens]
        self._must_wait = any(proposals.values()) or any(plan.num_drafts or plan.asks for plan in self._in_flight.values())

    def forget_worker(self) -> None:
        """Forget all plans in flight: the worker is lost."""
        self._in_flight = {}
        self._must_wait = self._was_alone = False

    def _measure(self, plan: _PlanInFlight, compute_s: float) -> None:
        now = self._clock()
        if plan.is_measured and compute_s:
            gap_s = now - self._result_at - compute_s if plan.follows and self._result_at is not None else None
            self._drafts.observe(MeasuredStep(plan.num_rows, compute_s, gap_s, plan.waited, plan.asks))
        self._result_at = now

    def _add(self, request: Request, row: int, plan: SchedulerOutput, budget: StepBudget) -> int:
        """Add a request's drafts to its row; return the number of added drafts."""
        draft_ids, request.draft_ids = request.draft_ids, ()
        # The step yields one token more than the accepted drafts.
        most = min(len(draft_ids), request.max_total_tokens - request.num_tokens - 1, self._kv_cache.most_drafts_after(request))
        num_drafts = budget.most_drafts(request, most)
        # This plan's token must be the only one in flight: proposals follow the last known token.
        is_current = request.num_placeholders == 1
        blocks = self._kv_cache.extend(request, num_drafts) if num_drafts > 0 and is_current else None
        if blocks is None:
            return 0
        budget.verify(request, num_drafts)
        plan.cached_requests.extend(row, num_drafts, blocks)
        plan.draft_tokens[request.key] = draft_ids[:num_drafts]
        plan.total_num_scheduled_tokens += num_drafts
        request.num_computed_tokens += num_drafts
        request.num_placeholders += num_drafts
        return num_drafts

    def _extend_ahead(self, plan: SchedulerOutput) -> None:
        """Allocate blocks for the positions at which the worker computes its proposals, as far as blocks are free."""
        columns = plan.cached_requests
        for row, key in enumerate(columns.keys):
            request = self._requests[key]
            ahead = min(plan.num_spec_tokens, request.max_total_tokens - request.num_computed_tokens)
            if ahead > 0 and (blocks := self._kv_cache.extend_ahead(request, ahead)) is not None:
                columns.extend(row, 0, blocks)

    def _settle(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        request.num_placeholders -= num_drafts
        if request.status is RequestStatus.RUNNING:  # else it was preempted, and is recomputed from the start
            request.num_computed_tokens -= num_drafts - num_accepted
        self.stats.count(num_drafts, num_accepted)
        if request.draft_metrics is not None:
            request.draft_metrics.count(num_drafts, num_accepted)
