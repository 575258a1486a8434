"""Scheduler: which tokens of which requests are computed in the next step.

Called by the engine's step loop alone, on its thread. Owns every unfinished request. There is no prefill phase and no decode
phase: a step moves each request's computed tokens towards its known tokens within the token budget (vLLM V1's principle).
Running requests come first; waiting ones only in a step that preempted nobody. Knows nothing of streams, time or devices.

Plans may be made before earlier results are back: tokens that the worker has sampled and kept are counted as placeholders.
"""

from collections.abc import Iterable

from tetrad.engine_core_svc.core.plan import (
    FINISH_REASONS,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.budget import StepBudget
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.message_budget import MessageBudget
from tetrad.engine_core_svc.scheduler.policy import ORDER_KEYS
from tetrad.engine_core_svc.scheduler.prefill_throttle import NoThrottle, PrefillThrottle
from tetrad.engine_core_svc.scheduler.request_states import RequestStates
from tetrad.engine_core_svc.scheduler.results import Results
from tetrad.engine_core_svc.structured_output.filler import InlineFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars

_MAX_OVERTAKEN = 64
"""Waiting requests that may be passed over in one plan, so that its cost does not grow with the queue."""


class Scheduler:
    """Queues, plans and results.

    Args:
        limits: see SchedulerLimits.
        kv_cache: the block tables; not shared with anyone.
        grammars: of the constrained requests; not shared with anyone. None: masks are computed at once, on this thread.
        throttle: holds prompts back for those that decode. None: nothing does.

    Attributes:
        shares_params: whether parameters that several new requests share are in a plan once; so the worker has to read them.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        grammars: Grammars | None = None,
        throttle: PrefillThrottle | None = None,
    ) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self.grammars = Grammars(InlineFiller()) if grammars is None else grammars
        self.throttle = NoThrottle() if throttle is None else throttle
        self.states = RequestStates(ORDER_KEYS[limits.policy], kv_cache, self.grammars)
        self.requests, self.waiting, self.running = self.states.requests, self.states.waiting, self.states.running
        self.step_counter = 0
        self.admitting = True
        self.shares_params = True
        self._results = Results(self.states, kv_cache, self.grammars)
        self._num_sampling = 0  # requests that the last plan brings a token; they decode from then on

    # --- requests come and go ---------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take a request over; see RequestStates.add."""
        self.states.add(request)

    def grammar_ready(self, request: Request, state: GrammarState) -> None:
        """Let a request that waited for its grammar into the queue."""
        self.states.grammar_ready(request, state)

    def finish_requests(self, keys: Iterable[int], status: RequestStatus) -> list[Request]:
        """End requests from outside; unknown and finished ones are ignored. Return those that really ended."""
        ended = [request for key in keys if (request := self.requests.get(key)) is not None]
        for request in ended:
            self.states.finish(request, status)
        return ended

    def finish_constrained(self) -> list[EngineCoreOutput]:
        """End the requests whose constraints allow nothing further; return their last outputs."""
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

    # --- planning ---------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step; None if there is nothing to compute now."""
        plan = SchedulerOutput(step_id=self.step_counter)
        make_room = self.limits.policy == "priority" and self._preempt_for_urgent_arrival()
        preemptions_before = self.states.num_preemptions
        budget = self._budget()
        self._schedule_running(plan, budget)
        if self.states.num_preemptions == preemptions_before or make_room:
            self._schedule_waiting(plan, budget)
        self._num_sampling = len(plan.sampling_keys)
        if plan.num_requests == 0:
            return None
        num_decodes = plan.total_num_scheduled_tokens - budget.num_prompt_tokens
        self.throttle.note_planned(plan.step_id, num_decodes, budget.num_prompt_tokens)
        plan.removed_keys = self.states.take_removed_keys()
        plan.grammar_masks = self.grammars.masks(plan)
        plan.swaps = self.kv_cache.note_sent(plan.step_id)
        self.step_counter += 1
        return plan

    def _budget(self) -> StepBudget:
        most, threshold = self.limits.max_num_batched_tokens, self.limits.long_prefill_token_threshold
        num_decoding = min(self._num_sampling, len(self.running))
        num_waiting = len(self.running) - num_decoding + len(self.waiting)
        paced = self.throttle.prompt_tokens(num_decoding, num_waiting)
        is_alone = num_decoding + num_waiting <= 1
        return StepBudget(
            most,
            prompt_tokens=most if paced is None else paced,
            chunk=most if is_alone or threshold == 0 else threshold,
            messages=MessageBudget(self.limits.messages, self.kv_cache.block_size, shares_params=self.shares_params),
        )

    def _schedule_running(self, plan: SchedulerOutput, budget: StepBudget) -> None:
        """Plan tokens of running requests, the first in order first."""
        index = 0
        while index < len(self.running) and budget.num_tokens > 0:
            request = self.running[index]
            num_new = self._num_tokens_to_compute(request, budget)
            if num_new == 0:
                index += 1
                continue
            blocks = self.kv_cache.extend(request, num_new)
            while blocks is None:
                # The last in order has not been planned in this step, unless it is the request itself.
                victim = self.running[-1]
                self.states.preempt(victim)
                if victim is request:
                    return
                blocks = self.kv_cache.extend(request, num_new)
            columns = plan.cached_requests
            columns.keys.append(request.key)
            columns.num_scheduled_tokens.append(num_new)
            columns.num_computed_tokens.append(request.num_computed_tokens)
            columns.num_new_blocks.append(len(blocks))
            columns.new_block_ids.extend(blocks)
            self._advance(plan, request, num_new, budget)
            index += 1

    def _schedule_waiting(self, plan: SchedulerOutput, budget: StepBudget) -> None:
        """Admit waiting requests in order until one does not fit; nobody behind it overtakes.

        Those that must not be planned now are passed, but nobody takes their room: they would never find any.
        """
        held_back: list[Request] = []
        num_reserved = 0  # blocks, of those held back
        while self.admitting and budget.num_tokens > 0 and len(self.running) + len(held_back) < self.limits.max_num_seqs:
            request = self.waiting.peek()
            if request is None:
                break
            if request.num_placeholders or request.is_held or not self._fits_messages(request, budget):
                # Preempted while a plan was in flight: its token is still to come, and belongs to the prefix to recompute.
                # Or it is constrained, and its like wait for theirs. Or the step's messages are full.
                num_reserved += self.kv_cache.blocks_for(request.num_tokens)
                if len(held_back) == _MAX_OVERTAKEN or num_reserved > self.kv_cache.pool.num_free:
                    break
                self.waiting.remove(request)
                held_back.append(request)
                continue
            num_new = self._admit(request, budget, num_reserved)
            if num_new == 0:
                break
            self._add_new_request(plan, request, num_new, budget)
        for request in held_back:
            self.waiting.add(request)

    def _admit(self, request: Request, budget: StepBudget, num_reserved: int) -> int:
        """Give a waiting request its blocks; return the tokens to compute now, 0 if it cannot run in this step."""
        prefix = self.kv_cache.find_prefix(request)
        remaining = request.num_tokens - len(prefix) * self.kv_cache.block_size
        if remaining > budget.num_tokens and not self.limits.enable_chunked_prefill:
            return 0
        num_new = budget.take(budget.messages.most_tokens(request, request.num_tokens - remaining, remaining))
        return num_new if num_new and self.kv_cache.admit(request, num_new, prefix, num_reserved=num_reserved) else 0

    def _add_new_request(self, plan: SchedulerOutput, request: Request, num_new: int, budget: StepBudget) -> None:
        budget.messages.describe(request)
        self.states.start(request)
        if not request.first_output_sent:
            # A request that is resumed after a crash may find its output cached, too: the same was asked before.
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        plan.new_requests.append(
            NewRequestData(
                key=request.key,
                request_id=request.request_id,
                token_ids=request.token_ids[:],
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed_tokens,
                num_scheduled_tokens=num_new,
                block_ids=request.block_ids[:],
                payload=request.payload,
                logprobs=request.logprobs,
            )
        )
        self._advance(plan, request, num_new, budget)

    def _advance(self, plan: SchedulerOutput, request: Request, num_new: int, budget: StepBudget) -> None:
        """Count the planned tokens as computed, so that the next plan need not wait for this one's result."""
        if not request.sizes.is_light:
            budget.messages.compute(request, request.num_computed_tokens, num_new)
        request.num_computed_tokens += num_new
        request.last_step_id = plan.step_id
        plan.total_num_scheduled_tokens += num_new
        if request.samples_at(request.num_computed_tokens):
            request.num_placeholders += 1
            plan.sampling_keys.append(request.key)

    def _num_tokens_to_compute(self, request: Request, budget: StepBudget) -> int:
        if request.is_held:
            return 0
        known = request.num_tokens + request.num_placeholders
        if request.num_placeholders and known >= request.max_total_tokens:
            return 0  # its last token is on the way
        num_tokens = known - request.num_computed_tokens
        if not request.sizes.is_light:
            num_tokens = budget.messages.most_tokens(request, request.num_computed_tokens, num_tokens)
        return budget.take(num_tokens)

    def _fits_messages(self, request: Request, budget: StepBudget) -> bool:
        """Return whether the messages of the step have room for a waiting request and the first token that it computes."""
        if not budget.messages.can_describe(request):
            return False
        if request.sizes.is_light:
            return True
        start = len(self.kv_cache.find_prefix(request)) * self.kv_cache.block_size
        return budget.messages.most_tokens(request, start, request.num_tokens - start) > 0

    # --- preemption -------------------------------------------------------------------------------------------------

    def _preempt_for_urgent_arrival(self) -> bool:
        """Preempt the least urgent requests if that lets the first in line, which is more urgent, run; whether it did.

        A victim stands behind that arrival from then on, so it cannot be preempted for it a second time.
        """
        first = self.waiting.peek()
        if first is None or not self.admitting or first.num_placeholders or first.is_held or self._could_run(first):
            return False
        victims = [request for request in self.running if request.priority < first.priority]
        reclaimable = sum(len(victim.block_ids) for victim in victims)
        if not victims or self.kv_cache.blocks_missing(first) > reclaimable:
            return False
        while self.running and self.running[-1].priority < first.priority and not self._could_run(first):
            self.states.preempt(self.running[-1])
        return True

    def _could_run(self, request: Request) -> bool:
        return len(self.running) < self.limits.max_num_seqs and self.kv_cache.blocks_missing(request) <= 0

    def isolate(self, key: int | None) -> None:
        """From now on plan nothing but this request, nothing at all if there is no such request; None: everything again."""
        if key is not None:
            for request in [request for request in self.running if request.key != key]:
                self.states.preempt(request)
        self.waiting.only = key

    # --- results and losses -----------------------------------------------------------------------------------------

    def update(self, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Apply one step's result; return what it brought, for requests that still want it."""
        outputs = self._results.apply(result)
        self.throttle.note_returned(result.step_id, result.compute_s)
        return outputs

    def forget_worker(self) -> None:
        """The worker is gone with all blocks' content and all results in flight: recompute everything, order kept."""
        self.states.forget_worker()
        self.throttle.forget_steps()
        self.grammars.forget_worker()
        self.kv_cache.rebuild()

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes. False while blocks are in use, unless everything running may be preempted."""
        if preempt_running:
            self.states.preempt_all()
        return self.kv_cache.reset_prefix_cache()
