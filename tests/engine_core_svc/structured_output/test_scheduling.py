"""Constrained requests in the scheduler: masks in plans, one step in flight, and interruptions of every kind."""

import asyncio

import pytest

from tetrad.engine_core_svc.core.plan import FinishReason
from tetrad.engine_core_svc.core.request import Request, RequestStatus, StopRules
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.structured_output.filler import Advance, InlineFiller, ThreadFiller
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Grammars, Preparations
from tetrad.services.errors import InternalError

EOS_RULE = StopRules(eos_token_id=0)


@pytest.fixture
def letters(compiled):
    return compiled("regex", "[a-z]{5}")


@pytest.fixture
def bench(make_bench):
    return make_bench()


def text_of(request, vocabulary):
    return vocabulary.tokens.decode_bytes(request.token_ids[request.num_prompt_tokens :]).decode()


def test_a_plan_has_masks_for_those_of_its_constrained_requests_that_sample(bench, letters):
    bench.scheduler.limits = type(bench.scheduler.limits)(max_num_batched_tokens=30)
    plain, short = bench.add(5), bench.add_constrained(5, letters)
    long = bench.add_constrained(40, letters)

    plan = bench.plan()

    assert set(plan.num_scheduled_tokens()) == {plain.key, short.key, long.key}
    assert list(bench.masks(plan)) == [short.key]


def test_plans_without_constrained_requests_have_no_masks(bench):
    bench.add(5)

    assert bench.plan().grammar_masks is None


def test_output_follows_the_constraint_and_ends_with_it(bench, letters, vocabulary):
    request = bench.add_constrained(5, letters, max_tokens=50)
    outputs = []

    while bench.plan() is not None:
        outputs += bench.deliver()

    assert len(text_of(request, vocabulary)) == 5
    assert text_of(request, vocabulary).islower()
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].new_token_ids == []
    assert bench.scheduler.grammars.num_requests == 0


def test_a_constrained_request_waits_for_its_token_while_the_others_go_on(bench, letters):
    plain, constrained = bench.add(5), bench.add_constrained(5, letters)

    first, second = bench.plan(), bench.plan()

    assert set(first.num_scheduled_tokens()) == {plain.key, constrained.key}
    assert set(second.num_scheduled_tokens()) == {plain.key}
    bench.deliver()
    assert set(bench.plan().num_scheduled_tokens()) == {plain.key, constrained.key}


def test_constrained_requests_stay_in_one_batch(bench, letters):
    """A late comer does not start a second batch that runs in turns with the first."""
    early = bench.add_constrained(5, letters)
    bench.plan()
    late = bench.add_constrained(5, letters)

    assert bench.plan() is None
    bench.deliver()
    assert set(bench.plan().num_scheduled_tokens()) == {early.key, late.key}


def test_whoever_waits_at_the_gate_is_passed_but_keeps_his_place(bench, letters):
    bench.add_constrained(5, letters)
    bench.plan()
    late, plain = bench.add_constrained(5, letters), bench.add(5)

    assert set(bench.plan().num_scheduled_tokens()) == {plain.key}
    assert bench.scheduler.waiting.peek() is late


@pytest.mark.parametrize("limits", [{"num_blocks": 7}, {"max_num_seqs": 2}])
def test_nobody_takes_the_room_of_one_who_waits_at_the_gate(make_bench, letters, limits):
    """Room that comes free while the gate is closed would go to those behind, time after time."""
    bench = make_bench(**limits)
    bench.add_constrained(5, letters)
    bench.plan()
    late, plain = bench.add_constrained(75, letters), bench.add(5)

    assert bench.plan() is None
    bench.deliver()
    bench.plan()

    assert late.status is RequestStatus.RUNNING
    assert plain.status is RequestStatus.WAITING


def test_a_request_without_its_grammar_is_skipped_and_comes_back_to_its_place(bench, letters):
    unready = bench.add(5, status=RequestStatus.WAITING_FOR_GRAMMAR)
    bench.scheduler.limits = type(bench.scheduler.limits)(max_num_seqs=1)
    other, last = bench.add(5, max_tokens=1), bench.add(5)

    assert bench.scheduler.states.num_waiting == 3
    assert set(bench.step()) == {other.key}
    bench.scheduler.grammar_ready(unready, GrammarState(Constraint(Language("regex", "")), letters))

    assert unready.status is RequestStatus.WAITING
    assert set(bench.step()) == {unready.key}
    assert last.status is RequestStatus.WAITING


def test_a_request_may_end_before_its_grammar_is_there(bench):
    request = bench.add(5, status=RequestStatus.WAITING_FOR_GRAMMAR)

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)

    assert not bench.scheduler.has_requests
    assert bench.scheduler.states.num_waiting == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_preempted_requests_go_on_where_they_stood(make_bench, letters, vocabulary, depth):
    bench = make_bench(num_blocks=8, block_size=4, enable_caching=False)
    requests = [bench.add_constrained(6, letters, max_tokens=9) for _ in range(4)] + [bench.add(6, max_tokens=9)]

    bench.run(depth=depth)

    assert bench.scheduler.states.num_preemptions > 0
    assert all(len(text_of(request, vocabulary)) == 5 for request in requests[:4])
    assert bench.num_free == 7


def test_a_lost_worker_costs_the_token_that_was_in_flight_and_no_more(bench, letters, vocabulary):
    request, plain = bench.add_constrained(5, letters), bench.add(5)
    bench.step()
    bench.plan()

    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    bench.worker_lengths.clear()

    assert set(bench.plan().num_scheduled_tokens()) == {request.key, plain.key}
    bench.deliver()
    bench.run(depth=2)
    assert len(text_of(request, vocabulary)) == 5


def test_a_token_that_the_mask_excludes_fails_its_request_alone(bench, letters):
    """Something that comes before masks, as the forced end of reasoning does: it is not shown to anyone."""
    constrained, plain = bench.add_constrained(5, letters), bench.add(5)
    bench.plan()

    outputs = {output.request: output for output in bench.deliver({constrained.key: (3,)})}

    assert outputs[constrained].finish_reason is FinishReason.ERROR
    assert "does not allow" in outputs[constrained].error.message
    assert outputs[constrained].new_token_ids == []
    assert outputs[plain].finish_reason is None
    assert set(bench.plan().num_scheduled_tokens()) == {plain.key}


def test_a_request_that_may_sample_nothing_more_ends_with_the_reason(bench, compiled, vocabulary):
    allowed = tuple(vocabulary.tokens.tokenize_str("a"))
    constraint = Constraint(Language("regex", ""), allowed_token_ids=allowed)
    bench.add_constrained(5, compiled("regex", "[a-z]1"), constraint=constraint)
    bench.plan()

    output = bench.deliver()[-1]

    assert output.finish_reason is FinishReason.ERROR
    assert "After 1 tokens nothing is left to sample" in output.error.message


def test_eos_ends_a_constrained_request_like_any_other(bench, compiled):
    request = bench.add_constrained(5, compiled("regex", "[a-z]*"), stop=EOS_RULE)
    bench.next_token = lambda key, length: 0
    bench.plan()

    [output] = bench.deliver()

    assert output.new_token_ids == [0]
    assert output.finish_reason is FinishReason.STOP
    assert request.is_finished
    assert bench.scheduler.grammars.num_requests == 0


def test_a_resumed_text_that_is_complete_ends_without_a_step(bench, compiled):
    state = GrammarState(Constraint(Language("regex", "")), compiled("choice", '["a"]'))
    InlineFiller().run([Advance(state, [state.vocabulary.tokens.tokenize_str("a")[0]])])
    request = bench.add(5, status=RequestStatus.WAITING_FOR_GRAMMAR)

    bench.scheduler.grammar_ready(request, state)
    [output] = bench.scheduler.finish_constrained()

    assert output.finish_reason is FinishReason.STOP
    assert bench.plan() is None


class SlowFiller:
    """Works when the test says so."""

    def __init__(self):
        self.work = []

    def submit(self, advances, on_done):
        self.work.append((advances, on_done))

    def finish(self):
        advances, on_done = self.work.pop()
        InlineFiller().run(advances)
        on_done()

    def close(self):
        pass


@pytest.fixture
def slow(bench):
    """A filler that takes its time, and the number of times that the engine was woken."""
    slow, woken = SlowFiller(), []
    bench.scheduler = Scheduler(
        bench.scheduler.limits, bench.scheduler.kv_cache, Grammars(slow, on_change=lambda: woken.append(1))
    )
    slow.woken = woken
    return slow


def test_the_others_do_not_wait_for_a_mask_that_takes_long(bench, slow, letters):
    constrained, plain = bench.add_constrained(5, letters), bench.add(5)
    bench.plan()
    bench.deliver()

    assert set(bench.step()) == {plain.key}
    slow.finish()
    assert slow.woken == [1]
    assert set(bench.plan().num_scheduled_tokens()) == {constrained.key, plain.key}


def test_a_request_may_end_while_its_mask_is_computed(bench, slow, letters):
    constrained = bench.add_constrained(5, letters)
    bench.plan()
    bench.deliver()

    bench.scheduler.finish_requests([constrained.key], RequestStatus.FINISHED_ABORTED)
    slow.finish()

    assert bench.scheduler.finish_constrained() == []
    assert not bench.scheduler.has_requests


def test_a_lost_worker_does_not_lose_the_mask_that_is_computed(bench, slow, letters, vocabulary):
    constrained = bench.add_constrained(5, letters)
    bench.plan()
    bench.deliver()

    bench.scheduler.forget_worker()
    bench.worker_lengths.clear()
    assert bench.plan() is None
    slow.finish()

    assert list(bench.masks(bench.plan())) == [constrained.key]
    assert len(text_of(constrained, vocabulary)) == 1


class Panic(BaseException):
    """What the library's Rust side raises when it is beyond itself."""


def panic(*_):
    raise Panic("index out of bounds")


async def test_a_panic_while_masks_are_computed_ends_those_requests_and_holds_nobody(monkeypatch, compiled):
    state, done = GrammarState(Constraint(Language("regex", "[a-e]{4}")), compiled("regex", "[a-e]{4}")), asyncio.Event()
    filler = ThreadFiller(1)
    monkeypatch.setattr(GrammarState, "advance", panic)

    filler.submit([Advance(state, [5])], done.set)
    await asyncio.wait_for(done.wait(), 5)
    filler.close()

    assert "index out of bounds" in state.error.message


class NoTrial:
    """Lets every language through."""

    def attempt(self, language, vocabulary):
        pass

    def interrupt(self):
        pass

    def close(self):
        pass


async def test_a_panic_while_a_resumed_constraint_is_advanced_fails_its_request(monkeypatch, vocabulary):
    async def source():
        return vocabulary

    failed, compiler = asyncio.Queue(), GrammarCompiler(source, NoTrial())
    preparations = Preparations(compiler, None, lambda request, error: failed.put_nowait((request, error)))
    monkeypatch.setattr(GrammarState, "advance", panic)
    request = Request(1, "r", [1, 2, 5], 2, 10, status=RequestStatus.WAITING_FOR_GRAMMAR)

    preparations.start(request, Constraint(Language("regex", "[a-e]{4}")))
    found, error = await asyncio.wait_for(failed.get(), 5)
    await preparations.close()

    assert (found, isinstance(error, InternalError)) == (request, True)
