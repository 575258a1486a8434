"""Drafts in plans and results: verification, rollback of rejected tokens, and requests without drafts."""

import pytest
from structlog.testing import capture_logs

from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts, WorkerDrafts
from tetrad.engine_core_svc.core.message_sizes import MessageLimits, MessageSizes
from tetrad.engine_core_svc.core.plan import FinishReason, Logprobs, ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request, StopRules
from tetrad.engine_core_svc.scheduler.drafting import NoDrafts
from tetrad.services.rpc.columns import pack_f32, pack_u32, unpack_u32


@pytest.fixture
def make_drafting(make_bench):
    """Return a maker of benches whose worker samples 50, 51, 52, ... by position, and that proposes these drafts."""

    def make(*draft_ids, **options):
        bench = make_bench(drafts=SameDrafts(*draft_ids), **options)
        bench.next_token = lambda _key, length: 50 + length
        return bench

    return make


def test_a_plan_verifies_drafts_behind_the_last_token(make_drafting):
    bench = make_drafting(56, 57)
    request = bench.add(5)
    bench.step()

    plan = bench.plan()

    assert plan.draft_tokens == {request.key: (56, 57)}
    assert plan.num_scheduled_tokens() == {request.key: 3}
    assert plan.total_num_scheduled_tokens == 3
    assert plan.sampling_keys == [request.key]


@pytest.mark.parametrize(
    ("draft_ids", "brought"),
    [((56, 57), [56, 57, 58]), ((56, 9), [56, 57]), ((9, 57), [56]), ((), [56])],
    ids=["all are right", "the first is right", "none counts behind a wrong one", "there are none"],
)
def test_a_step_brings_the_drafts_that_are_right_and_the_token_behind_them(make_drafting, draft_ids, brought):
    bench = make_drafting(*draft_ids)
    request = bench.add(5)
    bench.step()

    bench.plan()
    [output] = bench.deliver()

    assert output.new_token_ids == brought
    assert request.token_ids[5:] == [55, *brought]
    assert (request.num_computed_tokens, request.num_placeholders) == (request.num_tokens - 1, 0)


def test_rejected_places_are_computed_again(make_drafting):
    bench = make_drafting(56, 9, 9)
    request = bench.add(5)
    bench.step()
    bench.step()

    plan = bench.plan()

    assert request.num_tokens == 8
    assert plan.cached_requests.num_computed_tokens == [7]


def test_blocks_of_rejected_drafts_serve_the_next_step(make_drafting):
    bench = make_drafting(9, 9, 9, block_size=4, num_blocks=10)
    bench.add(4)
    bench.step()
    first = bench.plan()
    bench.deliver()

    second = bench.plan()

    assert [len(blocks) for [blocks] in first.cached_requests.new_blocks] == [1]
    assert [len(blocks) for [blocks] in second.cached_requests.new_blocks] == [1]
    assert bench.num_free == 9 - 3


def test_a_plan_waits_for_the_result_of_drafts(make_drafting):
    bench = make_drafting(56)
    bench.add(5)
    bench.step()
    assert bench.plan().draft_tokens

    assert bench.plan() is None
    bench.deliver()
    assert bench.plan() is not None


def test_a_proposal_is_verified_once_the_last_token_is_known(make_drafting):
    bench = make_drafting(56, 57)
    bench.add(5)
    plans = [bench.plan(), bench.plan()]
    bench.deliver()

    assert bench.plan() is None
    bench.deliver()

    assert [plan.draft_tokens for plan in plans] == [{}, {}]
    assert bench.plan().draft_tokens


def test_plans_are_made_ahead_while_nothing_is_proposed(make_drafting):
    bench = make_drafting()
    bench.add(5)
    bench.step()

    assert [bench.plan().draft_tokens, bench.plan().draft_tokens] == [{}, {}]


def test_an_engine_without_drafts_proposes_and_asks_for_none():
    drafts = NoDrafts()

    assert not drafts.admits(Request(1, "r1", [1], 1, 9))
    assert (drafts.max_tokens, drafts.num_from_worker(1), drafts.propose([], ModelRunnerOutput(1, [], []))) == (0, 0, {})


def test_a_single_draft_is_verified(make_bench):
    drafts = SameDrafts(56, 57)
    drafts.max_tokens = 1
    bench = make_bench(drafts=drafts)
    request = bench.add(5)
    assert not bench.scheduler.drafting.plans_alone
    bench.step()
    assert bench.plan().draft_tokens == {request.key: (56,)}
    bench.deliver()

    bench.scheduler.drafting.set_worker(verifies_drafts=True)

    assert bench.plan().draft_tokens == {request.key: (56,)}


@pytest.mark.parametrize(
    ("drafts", "verifies", "is_said"),
    [(SameDrafts(5), True, False), (SameDrafts(5), False, True), (NoDrafts(), True, False), (NoDrafts(), False, False)],
)
def test_a_worker_that_verifies_no_drafts_is_said_where_there_would_be_any(make_bench, drafts, verifies, is_said):
    with capture_logs() as logs:
        make_bench(drafts=drafts).scheduler.drafting.set_worker(verifies_drafts=verifies)

    assert [entry["event"] for entry in logs] == ["drafts.off"] * is_said


def test_a_worker_that_verifies_no_drafts_is_not_asked_for_any(make_bench):
    bench = make_bench(drafts=WorkerDrafts())
    bench.scheduler.drafting.set_worker(verifies_drafts=False)
    request = bench.add(5)
    plan = bench.plan()

    bench.scheduler.update(ModelRunnerOutput(plan.step_id, [request.key], [(55,)], draft_tokens={request.key: [7, 8]}))

    assert (plan.num_spec_tokens, request.draft_ids) == (0, ())


def test_a_worker_that_verifies_no_drafts_gets_none_and_two_plans_ahead(make_drafting):
    bench = make_drafting(56)
    bench.scheduler.drafting.set_worker(verifies_drafts=False)
    bench.add(5)
    bench.step()

    plans = [bench.plan(), bench.plan()]

    assert [plan.draft_tokens for plan in plans] == [{}, {}]


@pytest.mark.parametrize(("max_tokens", "draft_ids"), [(4, [(56, 57)]), (3, [(56,)]), (2, [])])
def test_no_more_is_drafted_than_the_request_may_have(make_drafting, max_tokens, draft_ids):
    bench = make_drafting(56, 57, 58, 59)
    bench.add(5, max_tokens=max_tokens)
    bench.step()

    plan = bench.plan()

    assert list(plan.draft_tokens.values()) == draft_ids
    assert [output.finish_reason for output in bench.deliver()] == [FinishReason.LENGTH]


def test_drafts_take_the_tokens_that_a_plan_has_left(make_drafting):
    bench = make_drafting(56, 57, 58, 59, max_num_batched_tokens=16)
    request = bench.add(5)
    bench.step()
    prompt = bench.add(13)

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {request.key: 3, prompt.key: 13}


def test_drafts_without_free_blocks_are_dropped_and_nobody_is_preempted(make_drafting):
    bench = make_drafting(56, 57, 58, 59, block_size=4, num_blocks=5)
    requests = [bench.add(7), bench.add(7)]
    bench.step()

    plan = bench.plan()

    assert plan.draft_tokens == {}
    assert plan.num_scheduled_tokens() == {request.key: 1 for request in requests}


def test_drafts_without_free_blocks_are_not_taken_back_and_do_not_count(make_drafting):
    bench = make_drafting(56, 57, 58, 59, block_size=4, num_blocks=5)
    requests = [bench.add(7), bench.add(7)]
    bench.step()

    bench.step()

    assert [(each.num_computed_tokens, each.num_placeholders) for each in requests] == [(8, 0), (8, 0)]
    assert bench.scheduler.drafting.stats.num_drafts == 0


def logprobs(*token_ids):
    """One candidate for each position."""
    return Logprobs(pack_u32(token_ids), pack_f32([-1.0] * len(token_ids)), pack_u32([1] * len(token_ids)), len(token_ids), 1)


def test_a_stop_among_accepted_drafts_cuts_tokens_and_logprobs_behind_it(make_drafting):
    bench = make_drafting(56, 57, 58)
    request = bench.add(5, stop=StopRules(eos_token_id=57))
    bench.step()
    plan = bench.plan()

    tokens = (56, 57, 58, 59)
    result = ModelRunnerOutput(plan.step_id, [request.key], [tokens], logprobs={request.key: logprobs(*tokens)})
    [output] = bench.scheduler.update(result)

    assert output.new_token_ids == [56, 57]
    assert output.finish_reason is FinishReason.STOP
    assert unpack_u32(output.logprobs.token_ids) == [56, 57]
    assert output.logprobs.has_shape(2, 1)


def test_who_is_preempted_while_its_drafts_are_verified_starts_over(make_drafting):
    bench = make_drafting(56, 9)
    request = bench.add(5)
    bench.step()
    bench.plan()
    bench.scheduler.reset_prefix_cache(preempt_running=True)

    [output] = bench.deliver()

    assert output.new_token_ids == [56, 57]
    assert (request.num_computed_tokens, request.num_placeholders) == (0, 0)
    assert bench.plan().num_scheduled_tokens() == {request.key: 8}


def test_drafts_from_before_a_preemption_are_not_verified(make_drafting):
    """Its tokens are computed in several steps now, of which only the last is followed by drafts."""
    bench = make_drafting(56, 57, enable_caching=False, max_num_batched_tokens=4)
    request = bench.add(4, max_tokens=8)
    bench.step()
    bench.scheduler.reset_prefix_cache(preempt_running=True)
    bench.step()

    plan = bench.plan()

    assert plan.num_scheduled_tokens() == {request.key: 1}
    assert plan.draft_tokens == {}


def test_only_accepted_tokens_are_found_in_the_prefix_cache(make_drafting):
    bench = make_drafting(56, 57, 9, block_size=4)
    first = bench.add([1, 2, 3, 4, 5], max_tokens=8)
    bench.step()
    bench.step()
    bench.plan()

    drafted = bench.add([1, 2, 3, 4, 5, 55, 56, 57, 9, 0])
    accepted = bench.add([*first.token_ids[:8], 0])

    found = [bench.scheduler.kv_cache.find_prefix(request).num_tokens for request in (drafted, accepted)]
    assert first.token_ids[5:] == [55, 56, 57, 58]
    assert found == [8, 8]


def test_the_worker_proposes_as_many_as_it_is_asked_for(make_bench):
    bench = make_bench(drafts=WorkerDrafts())
    request = bench.add(5)
    plan = bench.plan()

    result = ModelRunnerOutput(plan.step_id, [request.key], [(55,)], draft_tokens={request.key: [7, 8, 9]})
    bench.in_flight.clear()
    bench.scheduler.update(result)
    bench.worker_lengths[request.key] = 6

    assert plan.num_spec_tokens == 4
    assert bench.plan().draft_tokens == {request.key: [7, 8, 9]}


def test_ended_requests_are_forgotten_behind_one_that_lasts(make_drafting):
    bench = make_drafting(56)
    lasting = bench.add(5, max_tokens=1000)
    for _ in range(100):
        bench.add(5, max_tokens=1)
        bench.step()

    assert len(bench.scheduler.drafting._drafted) < 10
    assert lasting.key in bench.scheduler.drafting._drafted


def test_drafts_are_counted(make_drafting):
    bench = make_drafting(56, 57, 9)
    for _ in range(2):
        bench.add(5)
    bench.step()
    bench.step()

    stats = bench.scheduler.drafting.stats

    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 6, 4)
    assert stats.num_accepted_by_place == [2, 2, 0, 0, 0, 0, 0, 0]


def test_steps_are_measured_with_whether_they_waited_for_the_result_before(make_bench):
    drafts = WorkerDrafts()
    drafts.num_from_worker = lambda _: 0
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda tokens: 0.5
    bench.add(3)
    for num_plans in (1, 2, 2, 1):
        for _ in range(num_plans):
            bench.plan()
        while bench.in_flight:
            bench.deliver()

    assert [step.waited for step in drafts.measured] == [True, False, True, False, True]


def test_steps_without_a_request_that_may_get_drafts_cost_drafts_nothing(make_bench):
    drafts, asked = WorkerDrafts(), []
    drafts.admits = lambda _: False
    drafts.propose = lambda *step: asked.append(step) or {}
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda tokens: 0.5
    bench.add(3)
    for _ in range(3):
        bench.step()

    assert (drafts.measured, asked) == ([], [])
    assert [plan.num_spec_tokens for plan in bench.plans] == [0, 0, 0]


def test_a_gap_is_measured_from_the_result_of_the_step_that_a_step_follows(make_bench):
    """A step with a new request, here with a prompt of one token, does not directly continue the step before."""
    drafts = WorkerDrafts()
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda tokens: 0.5
    bench.add(3)
    for is_new in (False, False, True, False):
        if is_new:
            bench.add(1)
        bench.clock.now_s += 0.25
        bench.step()

    assert [(step.compute_s, step.gap_s) for step in drafts.measured] == [(0.5, 0.25), (0.5, None), (0.5, 0.25)]


def test_a_lost_worker_takes_its_drafts_along(make_drafting):
    bench = make_drafting(56, 57)
    request = bench.add(5)
    bench.step()
    bench.plan()

    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    bench.worker_lengths.clear()

    assert bench.plan().num_scheduled_tokens() == {request.key: 6}
    assert request.num_placeholders == 1


@pytest.mark.parametrize(
    ("sizes", "num_drafts"),
    [
        (MessageSizes(mask_bytes=300), 2),
        (MessageSizes(logprob_bytes=400), 1),
        (MessageSizes(mask_bytes=2000, logprob_bytes=2000), 0),
    ],
)
def test_no_more_is_drafted_than_fits_the_messages(make_drafting, sizes, num_drafts):
    limits = MessageLimits(10_000, 10_000, mask_bytes=1000, logprob_bytes=1000, position_bytes=1000, prompt_logprob_bytes=0)
    bench = make_drafting(56, 57, 58, 59, messages=limits)
    request = bench.add(5)
    bench.step()
    request.sizes = sizes

    plan = bench.plan()

    assert len(plan.draft_tokens.get(request.key, ())) == num_drafts
