"""Scheduler: decides which tokens of which requests are computed in the next step.

Called by the engine's step loop alone, on its thread. Owns every unfinished request. There is no prefill phase and no decode
phase: a step moves each request's computed tokens towards its known tokens within the token budget (vLLM V1's principle).
Running requests come first; waiting ones only in a step without preemptions. Knows nothing of streams, time or devices.

Plans may be made before earlier results arrive: tokens that the worker samples and keeps meanwhile are counted as placeholders.
With drafts a step yields several tokens for a request, and plans wait for the results before them (drafting.py).
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from tetrad.engine_core_svc.core.draft_metrics import MakeMetrics
from tetrad.engine_core_svc.core.media import NO_INPUTS, EncoderEvents, EncoderInput
from tetrad.engine_core_svc.core.plan import (
    FINISH_REASONS,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TransferEvents,
)
from tetrad.engine_core_svc.core.request import Purpose, Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.media.planning import Media, NoMedia
from tetrad.engine_core_svc.scheduler.adapters import Adapters, NoAdapters
from tetrad.engine_core_svc.scheduler.budget import ALL_ROWS, MessageBudget, NoStages, Rows, StageFillings, StepBudget
from tetrad.engine_core_svc.scheduler.call_seats import CallSeats
from tetrad.engine_core_svc.scheduler.drafting import Drafting, Drafts, NoDrafts
from tetrad.engine_core_svc.scheduler.fan_out_throttle import FanOutThrottle, NoFanOutThrottle
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.next_tokens import NextTokens
from tetrad.engine_core_svc.scheduler.policy import ORDERS
from tetrad.engine_core_svc.scheduler.prefill_throttle import NoThrottle, PrefillThrottle
from tetrad.engine_core_svc.scheduler.remote_loads import RemoteLoads
from tetrad.engine_core_svc.scheduler.request_states import RequestStates
from tetrad.engine_core_svc.scheduler.results import Results
from tetrad.engine_core_svc.scheduler.urgent_arrivals import UrgentArrivals
from tetrad.engine_core_svc.structured_output.filler import InlineFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars

_MAX_OVERTAKEN = 64
"""Maximum number of waiting requests that are passed over in one plan, so that its cost does not grow with the queue; and of
those of calls that run nothing, if that many further sequences of other calls stand before them."""


class Scheduler:
    """Queues requests, makes plans and applies results.

    Args:
        limits: see SchedulerLimits.
        kv_cache: the block tables; used by this scheduler only.
        grammars: grammars of the constrained requests; used by this scheduler only. None: masks are computed on this thread.
        throttle: limits prompt tokens beside requests that decode. None: no limit.
        drafts: proposes tokens for the worker to verify. None: no drafts.
        fan_outs: limits further sequences of a call beside other calls. None: no limit.
        adapters: decides which LoRA adapters requests may run with. None: no adapters.
        stages: divides requests among the stages of a pipeline. None: a single stage.
        media: decides which media the worker encodes. None: requests have no media.
        clock: returns monotonic seconds; the time between results determines whether drafts pay.
        make_draft_metrics: makes the counts of the drafts of each new request; None: requests have none.

    Attributes:
        shares_params: whether a plan contains parameters that several new requests share only once; the worker must support it.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        grammars: Grammars | None = None,
        throttle: PrefillThrottle | None = None,
        drafts: Drafts | None = None,
        fan_outs: FanOutThrottle | None = None,
        adapters: Adapters | NoAdapters | None = None,
        stages: StageFillings | None = None,
        media: Media | NoMedia | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_draft_metrics: MakeMetrics | None = None,
    ) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self.grammars = Grammars(InlineFiller()) if grammars is None else grammars
        self.throttle = NoThrottle() if throttle is None else throttle
        self.adapters = NoAdapters() if adapters is None else adapters
        self.fan_outs = NoFanOutThrottle() if fan_outs is None else fan_outs
        self.stages = NoStages() if stages is None else stages
        self.media = NoMedia() if media is None else media
        self.states = RequestStates(ORDERS[limits.policy], kv_cache, self.grammars, self.adapters, self.media)
        self._seats = CallSeats(self.states, kv_cache, limits.max_num_seqs)
        self._serves_by_priority = limits.policy == "priority"
        self._tokens = NextTokens(kv_cache, self.media, splits_prompts=limits.enable_chunked_prefill)
        self._urgent_arrivals = UrgentArrivals(self.states, kv_cache, limits.max_num_seqs, self._tokens.is_ready)
        self.requests, self.waiting, self.running = self.states.requests, self.states.waiting, self.states.running
        self.step_counter = 0
        self.admitting = True
        self.shares_params = True
        self.loads = RemoteLoads(self.states, kv_cache)
        proposer = NoDrafts() if drafts is None else drafts
        self.drafting = Drafting(proposer, self.requests, kv_cache, clock, make_draft_metrics)
        self._results = Results(self.states, kv_cache, self.grammars, self.drafting)
        # Numbers of requests that sample a token in the last plans, one plan per stage; they decode from then on.
        self._num_sampling: deque[int] = deque()

    # --- requests ---------------------------------------------------------------------------------------------------

    def add_request(self, request: Request, encoder_inputs: Mapping[str, EncoderInput] = NO_INPUTS) -> None:
        """Add a request, with the inputs of its media; see RequestStates.add."""
        self.media.begin(request, encoder_inputs)
        self.states.add(request)
        self.drafting.add_request(request)

    def grammar_ready(self, request: Request, state: GrammarState) -> None:
        """Put a request that waited for its grammar into the queue."""
        self.states.grammar_ready(request, state)

    def finish_requests(self, keys: Iterable[int], status: RequestStatus) -> list[Request]:
        """End requests on an order; unknown, finished and repeated ones are ignored. Return those that ended now."""
        ended = [request for key in dict.fromkeys(keys) if (request := self.requests.get(key)) is not None]
        for request in ended:
            self.states.finish(request, status)
        return ended

    def finish_constrained(self) -> list[EngineCoreOutput]:
        """End the requests whose grammars allow no further token; return their last outputs."""
        outputs = []
        for end in self.grammars.take_ends():
            status = RequestStatus.FINISHED_STOPPED if end.error is None else RequestStatus.FINISHED_ERROR
            ended = self.finish_requests([end.key], status)
            outputs += [EngineCoreOutput(request, [], FINISH_REASONS[status], error=end.error) for request in ended]
        return outputs

    @property
    def has_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.requests)

    @property
    def num_beside_steps(self) -> int:
        """The number of encodings and transfers whose ends may let requests go on: the workers do them beside the steps."""
        return self.media.num_encoding + len(self.loads) + self.states.deferred_frees.num_kept

    # --- planning ---------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step; return None if nothing can be computed now."""
        if self.drafting.awaits_result:
            return None
        plan = SchedulerOutput(step_id=self.step_counter)
        self.media.begin_plan()
        self.loads.give_up_unwanted()
        num_preempted = self.states.num_preemptions
        make_room = self._serves_by_priority and self.admitting and self._urgent_arrivals.make_room()
        num_kept = self._seats.make_room() if self.admitting else 0
        preemptions_before = self.states.num_preemptions
        budget = self._budget()
        rows: Rows = ALL_ROWS
        if not self.drafting.plans_alone:
            rows = self.stages.rows(self.running, len(self.waiting), self.limits.max_num_seqs)
        self._schedule_running(plan, budget, rows)
        if self.states.num_preemptions == preemptions_before or make_room:
            self._schedule_waiting(plan, budget, num_kept, rows)
        self.drafting.add_drafts(plan, budget)
        if plan.num_requests == 0 and not (self.kv_cache.connector.has_new_transfers or self.media.must_plan):
            # A preempted request has returned its references to media: requests before it may go on now.
            return None if self.states.num_preemptions == num_preempted else self.schedule()
        self._note_sampling(plan)
        num_decodes = plan.total_num_scheduled_tokens - budget.num_prompt_tokens
        self.throttle.note_planned(plan.step_id, num_decodes, budget.num_prompt_tokens)
        self.fan_outs.note_planned(plan.step_id, budget.share, budget.num_prompt_tokens)
        self.stages.note_planned(plan.step_id)
        plan.removed_keys = self.states.take_removed_keys()
        plan.grammar_masks = self.grammars.masks(plan)
        self.kv_cache.note_sent(plan)
        self.media.end_plan(plan)
        self.step_counter += 1
        return plan

    def _note_sampling(self, plan: SchedulerOutput) -> None:
        self._num_sampling.append(len(plan.sampling_keys))
        if len(self._num_sampling) > self.stages.num_stages:
            self._num_sampling.popleft()

    def _budget(self) -> StepBudget:
        most, threshold = self.limits.max_num_batched_tokens, self.limits.long_prefill_token_threshold
        num_decoding = min(sum(self._num_sampling), len(self.running))
        num_waiting = len(self.running) - num_decoding + len(self.waiting)
        paced = self.throttle.prompt_tokens(num_decoding, num_waiting)
        is_alone = num_decoding + num_waiting <= 1
        return StepBudget(
            most,
            prompt_tokens=most if paced is None else paced,
            chunk=most if is_alone or threshold == 0 else threshold,
            share=self.fan_outs.share(self.states.calls),
            messages=MessageBudget(
                self.limits.messages,
                self.kv_cache.block_size,
                self.kv_cache.coordinator.num_groups,
                shares_params=self.shares_params,
            ),
        )

    def _schedule_running(self, plan: SchedulerOutput, budget: StepBudget, rows: Rows) -> None:
        """Plan tokens of running requests, the first in order first."""
        index, in_order = 0, self.running.in_order
        while index < len(in_order) and budget.num_tokens > 0:
            request = in_order[index]
            has_room = budget.share.has_room(request) and rows.has_room(request)
            before = budget.tokens
            num_new = self._tokens.of_running(request, budget) if has_room else 0
            if num_new == 0:
                index += 1
                continue
            blocks = self.kv_cache.extend(request, num_new)
            while blocks is None:
                # The last request in order is not planned in this step yet, unless it is the request itself.
                victim = in_order[-1]
                self.states.preempt(victim)
                if victim is request:
                    budget.tokens = before
                    return
                blocks = self.kv_cache.extend(request, num_new)
            columns = plan.cached_requests
            columns.keys.append(request.key)
            columns.num_scheduled_tokens.append(num_new)
            columns.num_computed_tokens.append(request.num_computed_tokens)
            columns.new_blocks.append(blocks)
            self._advance(plan, request, num_new, budget)
            rows.spend(request)
            index += 1

    def _schedule_waiting(self, plan: SchedulerOutput, budget: StepBudget, num_kept: int, rows: Rows) -> None:
        """Admit waiting requests in order until one does not fit; later ones do not overtake it.

        The last `num_kept` seats are reserved for calls that run nothing. Requests that must not be planned now are passed
        over, but blocks stay reserved for them: otherwise they might never get any.
        """
        num_passed = 0  # calls that already have their share of rows
        num_held_back = num_reserved = 0  # requests that are passed over, and their blocks
        while self.admitting and budget.num_tokens > 0 and len(self.running) + num_held_back < self.limits.max_num_seqs:
            request = self.waiting.peek(further=num_passed < _MAX_OVERTAKEN)
            if request is None or not rows.admits:
                break
            is_further = self.states.calls.num_running(request.call) > 0
            num_seats = self.limits.max_num_seqs - len(self.running) - num_held_back
            if not budget.share.has_room(request) or (is_further and num_seats <= num_kept):
                num_passed += 1
                if num_passed > 2 * _MAX_OVERTAKEN:
                    break
                self.waiting.pass_over(request)
                continue
            num_ready, prefix = 0, self._tokens.prefix_to_follow(request, budget)
            if prefix is not None:
                if self.loads.begin(request, prefix, num_reserved):
                    continue
                num_ready = self._tokens.num_ready(request, prefix)
            if prefix is None or num_ready == 0:
                # It was preempted while a plan was in flight: the plan's token will be part of the prefix to recompute. Or its
                # grammar holds it back (is_held). Or the step's messages are full. Or its media are not encoded.
                num_reserved += self.kv_cache.blocks_for(request.num_tokens)
                if num_held_back == _MAX_OVERTAKEN or num_reserved > self.kv_cache.pool.num_free:
                    break
                self.waiting.pass_over(request)
                num_held_back += 1
                continue
            num_new = self._tokens.admit(request, prefix, num_ready, budget, num_reserved)
            if num_new == 0:
                if self._seats.preempt_idle_row(request, plan.step_id):
                    continue
                break
            self._add_new_request(plan, request, num_new, budget)
            rows.spend(request)
            num_kept -= not is_further
        self.waiting.look_again()

    def _add_new_request(self, plan: SchedulerOutput, request: Request, num_new: int, budget: StepBudget) -> None:
        budget.messages.describe(request)
        self.states.start(request)
        self.media.start(request)
        if request.num_cached_tokens < 0:  # else it may find its own blocks
            # A request that is resumed after a crash may find its output cached, too, from an equal earlier request.
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        plan.new_requests.append(
            NewRequestData(
                key=request.key,
                request_id=request.request_id,
                token_ids=request.token_ids[:],
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed_tokens,
                num_scheduled_tokens=num_new,
                block_tables=[table[:] for table in request.block_tables],
                payload=request.payload,
                adapter=request.adapter,
                logprobs=request.logprobs,
                pools=request.purpose is Purpose.POOLING,
            )
        )
        self._advance(plan, request, num_new, budget)

    def _advance(self, plan: SchedulerOutput, request: Request, num_new: int, budget: StepBudget) -> None:
        """Count the planned tokens as computed, so that the next plan does not wait for this plan's result."""
        if not request.sizes.is_light:
            budget.messages.compute(request, request.num_computed_tokens, num_new)
            self.media.advance(request, request.num_computed_tokens, num_new)
        budget.share.spend(request, num_new)
        request.num_computed_tokens += num_new
        request.last_step_id = plan.step_id
        plan.total_num_scheduled_tokens += num_new
        if request.samples_at(request.num_computed_tokens):
            request.num_placeholders += 1
            plan.sampling_keys.append(request.key)

    def isolate(self, key: int | None) -> None:
        """Plan only the request with this key from now on, or nothing if there is no such request; None: plan all again."""
        self.states.isolate(key)

    # --- results and losses -----------------------------------------------------------------------------------------

    def update(self, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Apply one step's result; return the outputs of requests that have not ended."""
        outputs = self._results.apply(result)
        self.throttle.note_returned(result.step_id, result.compute_s)
        self.fan_outs.note_returned(result.step_id)
        self.stages.note_returned(result.step_id)
        self.adapters.note_step()
        self.media.note_returned(result.step_id)
        return outputs

    def note_encoded(self, events: EncoderEvents) -> list[EngineCoreOutput]:
        """Apply the ends of encodings; end the requests whose media could not be encoded, and return their outputs."""
        status = RequestStatus.FINISHED_ERROR
        return [
            EngineCoreOutput(request, [], FINISH_REASONS[status], error=error)
            for key, error in self.media.apply(events)
            for request in self.finish_requests([key], status)
        ]

    def note_transfers(self, events: TransferEvents) -> None:
        """Continue requests whose blocks have arrived from another engine core, and free blocks that have been read."""
        self.loads.apply(events)

    def forget_worker(self) -> None:
        """Recompute all requests, in their order: the worker is lost, with its blocks and all results in flight."""
        self.loads.forget_worker()
        self.states.forget_worker()
        self.media.forget_worker()
        self.throttle.forget_steps()
        self.fan_outs.forget_steps()
        self.stages.forget_steps()
        self.drafting.forget_worker()
        self.grammars.forget_worker()
        self.kv_cache.rebuild()

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes. Return False while requests use blocks, unless running requests may be preempted.

        Blocks are in use, too, that another engine core has yet to read or that are read from one. With `preempt_running` they
        are left to these transfers, whose results no request uses.
        """
        tables = self.states.deferred_frees.of_steps()
        if preempt_running:
            self.states.preempt_all()
            self.loads.outdate()
            tables = itertools.chain(self.states.deferred_frees, (load.blocks for load in self.loads))
        return self.kv_cache.reset_prefix_cache({block for table in tables for block in table} - {NULL_BLOCK})
