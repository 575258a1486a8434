"""Invariants that hold after any interleaving of additions, aborts, plans, results, worker losses and poison.

A poisonous request takes every worker down that answers a plan with it.
"""

import re

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tetrad.engine_core_svc.core.request import RequestStatus, StopRules
from tetrad.engine_core_svc.engine.crash_isolation import NOBODY, Suspects

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 14, 4, 48


class Walk(RuleBasedStateMachine):
    """Hypothesis makes it without arguments: a subclass has `make_bench`, and the grammar `letters` over `vocabulary`."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority"]),
        depth=st.integers(1, 3),
        budget=st.sampled_from([5, 16, 64]),
        caching=st.booleans(),
    )
    def start(self, policy, depth, budget, caching):
        self.bench = self.make_bench(
            num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, enable_caching=caching, policy=policy,
            max_num_seqs=4, max_num_batched_tokens=budget,
        )  # fmt: skip
        self.bench.next_token = lambda key, length: (key * 31 + length * 17) % 23
        self.depth, self.requests, self.ends, self.admitted, self.constrained = depth, [], {}, [], set()
        self.suspects, self.poisonous = Suspects(self.bench.scheduler, acquitted_after=depth + 1), set()

    @rule(size=st.integers(1, 30), shared=st.booleans(), max_tokens=st.integers(1, 17), priority=st.integers(0, 2))
    def add(self, size, shared, max_tokens, priority):
        prompt = list(range(500, 500 + size)) if shared else size
        stop = StopRules(eos_token_id=3)
        self.requests.append(self.bench.add(prompt, max_tokens=max_tokens, priority=priority, stop=stop, max_model_len=MAX_LEN))

    @rule(size=st.integers(1, 20), max_tokens=st.integers(1, 9), priority=st.integers(0, 2))
    def add_constrained(self, size, max_tokens, priority):
        fields = {"max_tokens": max_tokens, "priority": priority, "max_model_len": MAX_LEN}
        self.requests.append(self.bench.add_constrained(size, self.letters, **fields))
        self.constrained.add(self.requests[-1])

    @rule(size=st.integers(1, 20), priority=st.integers(0, 2))
    @precondition(lambda self: len(self.poisonous) < 3)
    def add_poisonous(self, size, priority):
        self.requests.append(self.bench.add(size, priority=priority, max_model_len=MAX_LEN))
        self.poisonous.add(self.requests[-1])

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def abort(self, data):
        request = data.draw(st.sampled_from(self.requests))
        self._note_ends(self.bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED))

    @rule()
    def plan(self):
        if len(self.bench.in_flight) < self.depth:
            self._check_order(self._plan())

    @rule()
    @precondition(lambda self: self.bench.in_flight)
    def deliver(self):
        plan, _ = self.bench.in_flight[0]
        if plan.num_scheduled_tokens().keys() & {request.key for request in self.poisonous}:
            self._lose_worker(crashed=True)
            return
        outputs = self.bench.deliver()
        self._note_ends([output.request for output in outputs if output.finish_reason is not None])

    @rule()
    def lose_connection(self):
        self._lose_worker(crashed=False)

    @rule()
    @precondition(lambda self: not self.suspects._alone)
    def lose_worker(self):
        """For no fault of a request's; during a trial that would be a miscarriage of justice."""
        self._lose_worker(crashed=True)

    def _plan(self):
        self.suspects.choose(len(self.bench.in_flight))
        plan = self.bench.plan()
        alone = self.suspects._alone
        if plan is not None and alone is not None:
            assert alone != NOBODY
            assert set(plan.num_scheduled_tokens()) == {alone}
        return plan

    def _lose_worker(self, *, crashed):
        self.suspects.note_loss()
        self.bench.scheduler.forget_worker()
        self.bench.in_flight.clear()
        self.bench.worker_lengths.clear()
        convicted = self.suspects.judge(crashed=crashed)
        assert set(convicted) <= self.poisonous
        self._note_ends(self.bench.scheduler.finish_requests([r.key for r in convicted], RequestStatus.FINISHED_ERROR))

    def _note_ends(self, requests):
        for request in requests:
            assert request.key not in self.ends, "ended twice"
            self.ends[request.key] = request.status

    def _check_order(self, plan):
        """First admissions keep the order of arrival within a priority."""
        for new in plan.new_requests if plan else ():
            request = self.bench.scheduler.requests[new.key]
            if request.num_preemptions == 0:
                equals = [other for other in self.admitted if other.priority == request.priority]
                assert all(other.sequence_number < request.sequence_number for other in equals)
                self.admitted.append(request)

    @invariant()
    def every_block_is_free_or_held_as_often_as_it_is_counted(self):
        pool, scheduler = self.bench.scheduler.kv_cache.pool, self.bench.scheduler
        held = [0] * NUM_BLOCKS
        for request in scheduler.requests.values():
            assert bool(request.block_ids) == (request.status is RequestStatus.RUNNING)
            for block in request.block_ids:
                held[block] += 1
        for blocks in scheduler.states.deferred_frees:
            for block in blocks:
                held[block] += 1
        free = pool.free_blocks()
        assert sorted([0, *free, *(block for block in range(NUM_BLOCKS) if held[block])]) == list(range(NUM_BLOCKS))
        assert [pool.num_references(block) for block in range(NUM_BLOCKS)] == held

    @invariant()
    def nobody_computes_past_what_is_known_or_allowed(self):
        for request in self.bench.scheduler.requests.values():
            assert request.num_computed_tokens <= request.num_tokens + request.num_placeholders
            assert request.num_tokens + request.num_placeholders <= request.max_total_tokens
            assert request.num_computed_tokens <= len(request.block_ids) * BLOCK_SIZE

    @invariant()
    def constrained_requests_have_one_step_in_flight_at_most(self):
        assert all(request.num_placeholders <= 1 for request in self.constrained)

    @invariant()
    def every_request_is_in_exactly_one_place(self):
        scheduler = self.bench.scheduler
        running, waiting = {r.key for r in scheduler.running}, {r.key for r in scheduler.waiting}
        assert not running & waiting
        assert running | waiting == set(scheduler.requests)
        assert set(self.ends) | set(scheduler.requests) == {r.key for r in self.requests}

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        for _ in range(5000):
            while len(self.bench.in_flight) < self.depth and self._plan() is not None:
                pass
            if not self.bench.in_flight:
                break
            self.deliver()
        assert set(self.ends) == {request.key for request in self.requests}, "a request never ended"
        for request in self.poisonous:
            assert self.ends[request.key] in (RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_ABORTED)
        assert self.bench.num_free == NUM_BLOCKS - 1
        assert self.bench.scheduler.grammars.num_requests == 0
        for request in self.constrained:
            text = self.vocabulary.tokens.decode_bytes(request.token_ids[request.num_prompt_tokens :]).decode()
            assert re.fullmatch("[a-e]{0,4}", text)
            if self.ends[request.key] is RequestStatus.FINISHED_STOPPED:
                assert len(text) == 4
        for request in self.requests:
            if request in self.constrained:
                continue
            for position in range(request.num_prompt_tokens, request.num_tokens):
                assert request.token_ids[position] == self.bench.next_token(request.key, position), "out of place"


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_random_walks_lose_no_block_and_no_request(make_bench, compiled, vocabulary):
    given = {"make_bench": staticmethod(make_bench), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    run_state_machine_as_test(
        type("GivenWalk", (Walk,), given),
        settings=settings(
            max_examples=150, stateful_step_count=60, deadline=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
