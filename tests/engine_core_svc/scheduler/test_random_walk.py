"""Invariants that hold after any interleaving of additions, aborts, plans, results, worker losses and poison.

A poisonous request takes every worker down that answers a plan with it. With drafts, of which the worker accepts none to all,
requests bring the same tokens as alone and without.
"""

import math
import os
import re
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.engine_core_svc.kv_cache.worker_memory import STATE, WorkerMemory, group_of
from tests.engine_core_svc.scheduler.fake_drafts import GuessedDrafts
from tetrad.engine_core_svc.core.request import ALONE, Purpose, RequestStatus, StopRules
from tetrad.engine_core_svc.engine.crash_isolation import NO_REQUEST, CrashIsolation
from tetrad.engine_core_svc.kv_cache.block_pool import NULL_BLOCK
from tetrad.engine_core_svc.scheduler.budget import NoStages
from tetrad.engine_core_svc.scheduler.fan_out_throttle import MeasuringFanOutThrottle
from tetrad.engine_core_svc.scheduler.stage_filling import StageFilling

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 14, 4, 48
SHARE = float(os.environ.get("TEST_WALKS", "0.3"))
"""Of the walks: `make fuzz` takes all, `make test` a third of them, and a search for planted bugs fewer (tests/mutants)."""


def _next_token(key, length):
    return (key * 31 + length * 17) % 23


def _is_equal(one, other):
    are_alone = one.call[0] == other.call[0] == ALONE[0]
    return one.priority == other.priority and (are_alone or one.call == other.call)


class Walk(RuleBasedStateMachine):
    """Hypothesis makes it without arguments: a subclass has `make_bench`, and the grammar `letters` over `vocabulary`."""

    num_blocks, windows = NUM_BLOCKS, (None,)

    @initialize(
        policy=st.sampled_from(["fcfs", "priority"]),
        depth=st.integers(1, 3),
        budget=st.sampled_from([5, 16, 64]),
        caching=st.booleans(),
        max_drafts=st.integers(0, 5),
        shares=st.booleans(),
        asks_worker=st.booleans(),
        num_host_blocks=st.sampled_from([0, 3, 20]),
        num_stages=st.integers(1, 3),
        seed=st.integers(0, 1000),
    )
    def start(self, policy, depth, budget, caching, max_drafts, shares, asks_worker, num_host_blocks, num_stages, seed):
        random = Random(seed)
        letters = self.vocabulary.tokens.tokenize_str("abcde")
        self.bench = self.make_bench(
            num_blocks=self.num_blocks, block_size=BLOCK_SIZE, enable_caching=caching, policy=policy,
            max_num_seqs=4, max_num_batched_tokens=budget, windows=self.windows,
            drafts=GuessedDrafts(random, max_drafts, _next_token, wrong_ids=[3, 7, *letters], asks_worker=asks_worker),
            fan_outs=MeasuringFanOutThrottle(1.5, count().__next__) if shares else None, num_host_blocks=num_host_blocks,
        )  # fmt: skip
        self.bench.scheduler.stages = StageFilling(num_stages) if num_stages > 1 else NoStages()
        self.bench.next_token = _next_token
        self.bench.accepts = lambda num_right: random.choice([num_right, random.randint(0, num_right)])
        self.memory = self._new_memory()
        self.depth, self.requests, self.ends, self.admitted, self.constrained = depth, [], {}, [], set()
        tokens_to_clear = max(depth, 1 + max_drafts) + 1
        self.suspects, self.poisonous = CrashIsolation(self.bench.scheduler, tokens_to_clear=tokens_to_clear), set()

    @rule(
        size=st.integers(1, 30),
        shared=st.booleans(),
        max_tokens=st.integers(1, 17),
        priority=st.integers(0, 2),
        call=st.integers(0, 2),
        num_sequences=st.integers(1, 3),
    )
    def add(self, size, shared, max_tokens, priority, call, num_sequences):
        prompt = list(range(500, 500 + size)) if shared else size
        fields = {"max_tokens": max_tokens, "priority": priority, "stop": StopRules(eos_token_id=3), "call": call}
        self.requests += [self.bench.add(prompt, **fields, max_model_len=MAX_LEN) for _ in range(num_sequences)]

    @rule(size=st.integers(1, 20), max_tokens=st.integers(1, 9), priority=st.integers(0, 2))
    def add_constrained(self, size, max_tokens, priority):
        fields = {"max_tokens": max_tokens, "priority": priority, "max_model_len": MAX_LEN}
        self.requests.append(self.bench.add_constrained(size, self.letters, **fields))
        self.constrained.add(self.requests[-1])

    @rule(size=st.integers(1, 30), shared=st.booleans(), priority=st.integers(0, 2))
    def add_pooling(self, size, shared, priority):
        prompt = list(range(500, 500 + size)) if shared else size
        self.requests.append(self.bench.add(prompt, max_tokens=1, priority=priority, purpose=Purpose.POOLING))

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
    def plan_while_paused(self):
        """Running requests continue, and no other starts."""
        if len(self.bench.in_flight) < self.depth:
            self.bench.scheduler.admitting = False
            plan = self._plan()
            assert plan is None or not plan.new_requests
            self.bench.scheduler.admitting = True

    @rule()
    @precondition(lambda self: self.bench.in_flight)
    def deliver(self):
        plan, _ = self.bench.in_flight[0]
        if plan.num_scheduled_tokens().keys() & {request.key for request in self.poisonous}:
            self._lose_worker(crashed=True)
            return
        outputs = self.bench.deliver()
        for output in outputs:
            if output.request.purpose is Purpose.POOLING:
                assert (output.pooling_output, output.new_token_ids) == (self.bench.vector(output.request.key), [])
        self._note_ends([output.request for output in outputs if output.finish_reason is not None])

    @rule()
    def reset_prefix_cache(self):
        """Whatever runs is preempted, also while a plan in flight names it."""
        self.bench.scheduler.reset_prefix_cache(preempt_running=True)

    @rule()
    def lose_connection(self):
        self._lose_worker(crashed=False)

    @rule()
    @precondition(lambda self: not self.suspects._alone)
    def lose_worker(self):
        """For no fault of a request's; during a trial that would be a miscarriage of justice."""
        self._lose_worker(crashed=True)

    def _plan(self):
        self.suspects.choose(self._num_under_way())
        plan = self.bench.plan()
        if plan is not None:
            assert not self.memory.run(plan, self.bench.in_flight[-1][1]), "the cache holds what was rejected"
        alone = self.suspects._alone
        if plan is not None and alone is not None:
            assert alone != NO_REQUEST
            assert set(plan.num_scheduled_tokens()) <= {alone}
        return plan

    def _num_under_way(self):
        return len(self.bench.in_flight)

    def _end_transfer(self):
        """End a transfer of blocks when nothing else goes on; return whether there was any."""
        return False

    def _new_memory(self):
        return WorkerMemory(BLOCK_SIZE, [group_of(window) for window in self.windows])

    def _lose_worker(self, *, crashed):
        self.suspects.note_loss()
        self.bench.scheduler.forget_worker()
        self.bench.in_flight.clear()
        self.bench.worker_lengths.clear()
        self.memory = self._new_memory()
        to_fail = self.suspects.resolve_loss(crashed=crashed)
        assert set(to_fail) <= self.poisonous
        self._note_ends(self.bench.scheduler.finish_requests([r.key for r in to_fail], RequestStatus.FINISHED_ERROR))

    def _note_ends(self, requests):
        for request in requests:
            assert request.key not in self.ends, "ended twice"
            self.ends[request.key] = request.status

    def _check_order(self, plan):
        """First admissions keep the order of arrival within a priority, among single requests and within a call.

        A constrained request may be passed over by others.
        """
        for new in plan.new_requests if plan else ():
            request = self.bench.scheduler.requests[new.key]
            if request.num_preemptions == 0:
                equals = [other for other in self.admitted if _is_equal(other, request)]
                if request in self.constrained:
                    equals = [other for other in equals if other in self.constrained]
                assert all(other.sequence_number < request.sequence_number for other in equals)
                self.admitted.append(request)

    @invariant()
    def every_block_is_free_or_held_as_often_as_it_is_counted(self):
        pool, scheduler = self.bench.scheduler.kv_cache.pool, self.bench.scheduler
        held = [0] * self.num_blocks
        for request in scheduler.requests.values():
            assert len(request.block_tables) == len(self.windows) * (request.status is RequestStatus.RUNNING)
            for block in scheduler.kv_cache.blocks_of(request):
                held[block] += 1
        for blocks in (*scheduler.states.deferred_frees, *(load.blocks for load in scheduler.loads)):
            for block in blocks:
                held[block] += 1
        free = pool.free_blocks()
        assert held[NULL_BLOCK] == 0
        everywhere = [NULL_BLOCK, *free, *(block for block in range(self.num_blocks) if held[block])]
        assert sorted(everywhere) == list(range(self.num_blocks))
        assert [pool.num_references(block) for block in range(self.num_blocks)] == held

    @invariant()
    def tables_hold_what_windows_still_reach(self):
        for request in self.bench.scheduler.running:
            for table, window in zip(request.block_tables, self.windows, strict=True):
                assert len(table) == len(request.block_tables[0])
                if window == STATE:
                    assert table[-1] != NULL_BLOCK
                    assert sum(block != NULL_BLOCK for block in table) <= 2, "more than the last state and one not known yet"
                    continue
                passed = 0 if window is None else max(request.num_computed_tokens - window + 1, 0) // BLOCK_SIZE
                assert NULL_BLOCK not in table[passed:]

    @invariant()
    def nobody_computes_past_what_is_known_or_allowed(self):
        for request in self.bench.scheduler.requests.values():
            assert 0 <= request.num_computed_tokens <= request.num_tokens + request.num_placeholders
            assert request.num_tokens + request.num_placeholders <= request.max_total_tokens
            assert request.num_computed_tokens <= sum(map(len, request.block_tables[:1])) * BLOCK_SIZE

    @invariant()
    def constrained_requests_have_one_step_in_flight_at_most(self):
        named = [key for plan, _ in self.bench.in_flight for key in plan.sampling_keys]
        assert all(named.count(request.key) <= 1 for request in self.constrained if not request.is_finished)

    @invariant()
    def every_request_is_in_exactly_one_place(self):
        scheduler = self.bench.scheduler
        running, waiting = {r.key for r in scheduler.running}, {r.key for r in scheduler.waiting}
        loading = {load.request.key for load in scheduler.loads} & set(scheduler.requests)
        assert len(running) + len(waiting) + len(loading) == len(running | waiting | loading)
        assert running | waiting | loading == set(scheduler.requests)
        assert set(self.ends) | set(scheduler.requests) == {r.key for r in self.requests}

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        for _ in range(5000):
            while len(self.bench.in_flight) < self.depth and self._plan() is not None:
                self.every_block_is_free_or_held_as_often_as_it_is_counted()
                self.nobody_computes_past_what_is_known_or_allowed()
            if self.bench.in_flight:
                self.deliver()
            elif not self._end_transfer():
                break
        assert set(self.ends) == {request.key for request in self.requests}, "a request never ended"
        for request in self.poisonous:
            assert self.ends[request.key] in (RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_ABORTED)
        assert self.bench.num_free == self.num_blocks - 1
        assert self.bench.scheduler.grammars.num_requests == 0
        for request in self.constrained:
            text = self.vocabulary.tokens.decode_bytes(request.token_ids[request.num_prompt_tokens :]).decode()
            assert re.fullmatch("[a-e]{0,4}", text)
            if self.ends[request.key] is RequestStatus.FINISHED_STOPPED:
                assert len(text) == 4
        for request in self.requests:
            alone = self._run_alone(request)
            assert request.token_ids == alone.token_ids[: request.num_tokens], "out of place"
            if self.ends[request.key] in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED):
                assert (request.num_tokens, request.status) == (alone.num_tokens, alone.status)

    def _run_alone(self, request):
        """Return the same request as it runs with nothing beside it and without drafts."""
        bench = self.make_bench()
        bench.next_token, bench._keys = _next_token, count(request.key)
        prompt = request.token_ids[: request.num_prompt_tokens]
        fields = {"max_tokens": request.max_total_tokens - len(prompt), "stop": request.stop, "purpose": request.purpose}
        if request in self.constrained:
            alone = bench.add_constrained(len(prompt), self.letters, **fields)
        else:
            alone = bench.add(prompt, **fields)
        bench.run()
        return alone


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(
    ("windows", "num_blocks", "num_walks"),
    [((None,), NUM_BLOCKS, 150), ((None, 6, 6), 38, 60), ((9,), 14, 40), ((None, STATE, STATE), 26, 40), ((STATE,), 7, 40)],
    ids=str,
)
def test_random_walks_lose_no_block_and_no_request(make_bench, compiled, vocabulary, windows, num_blocks, num_walks):
    """With all keys in one group, with a window in two others, a window alone, states beside keys, and states alone."""
    given = {"make_bench": staticmethod(make_bench), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    given |= {"windows": windows, "num_blocks": num_blocks}
    run_state_machine_as_test(
        type("GivenWalk", (Walk,), given),
        settings=settings(
            max_examples=math.ceil(num_walks * SHARE), stateful_step_count=60,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def test_a_prompt_preempted_between_chunks_finds_only_computed_blocks(make_bench, compiled, vocabulary):
    """A walk that failed: blocks allocated ahead for proposals of the worker were cached before a plan computed them."""
    given = {"make_bench": staticmethod(make_bench), "letters": compiled("regex", "[a-e]{4}"), "vocabulary": vocabulary}
    walk = type("GivenWalk", (Walk,), given)()
    options = {"caching": True, "max_drafts": 1, "shares": False, "asks_worker": True, "num_host_blocks": 0, "num_stages": 1}
    walk.start(policy="fcfs", depth=2, budget=5, seed=0, **options)
    walk.add_constrained(max_tokens=2, priority=0, size=2)
    walk.plan()
    walk.add_constrained(max_tokens=4, priority=0, size=17)
    walk.add(call=0, max_tokens=1, num_sequences=1, priority=0, shared=False, size=29)
    walk.deliver()
    walk.lose_connection()
    walk.teardown()
