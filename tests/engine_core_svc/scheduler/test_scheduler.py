"""The plan of each step. Numbers are vLLM's own test vectors where it has them."""

import pytest

from tetrad.engine_core_svc.core.plan import FinishReason
from tetrad.engine_core_svc.core.request import RequestStatus, StopRules


def test_ten_requests_run_in_one_step_in_order_of_arrival(make_bench):
    bench = make_bench()
    requests = [bench.add(10) for _ in range(10)]

    plan = bench.plan()

    assert [new.key for new in plan.new_requests] == [request.key for request in requests]
    assert plan.total_num_scheduled_tokens == 100


def test_a_request_is_described_whole_once_and_as_columns_afterwards(make_bench):
    bench = make_bench()
    request = bench.add(10)

    bench.step()
    second = bench.plan()

    assert not second.new_requests
    assert second.cached_requests.keys == [request.key]
    assert second.cached_requests.num_computed_tokens == [10]


def test_golden_three_long_prompts_share_the_budget(make_bench):
    bench = make_bench(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    for _ in range(3):
        bench.add(800)

    assert list(bench.step().values()) == [400, 400, 224]
    assert list(bench.step().values()) == [400, 400, 224]
    assert list(bench.step().values()) == [1, 1, 352]


def test_without_chunked_prefill_a_prompt_that_does_not_fit_blocks_those_behind(make_bench):
    bench = make_bench(max_num_batched_tokens=1024, enable_chunked_prefill=False)
    first, _, _ = bench.add(800), bench.add(800), bench.add(10)

    assert bench.step() == {first.key: 800}


def test_with_chunked_prefill_the_budget_is_filled(make_bench):
    bench = make_bench(max_num_batched_tokens=1024)
    first, second = bench.add(800), bench.add(800)

    assert bench.step() == {first.key: 800, second.key: 224}


def test_a_step_uses_its_last_token(make_bench):
    bench = make_bench(max_num_batched_tokens=3)
    requests = [bench.add(1) for _ in range(3)]

    steps = [bench.step() for _ in range(2)]

    assert steps == [{request.key: 1 for request in requests}] * 2


def test_no_more_requests_run_than_there_are_slots(make_bench):
    bench = make_bench(max_num_seqs=2)
    first, second, third = (bench.add(4, max_tokens=1) for _ in range(3))

    assert bench.step() == {first.key: 4, second.key: 4}
    assert bench.step() == {third.key: 4}


@pytest.mark.parametrize(
    ("stop", "max_tokens", "tokens", "kept", "reason", "stop_reason"),
    [
        (StopRules(stop_token_ids=frozenset({42})), 16, [10, 42, 12], [10, 42], FinishReason.STOP, 42),
        (StopRules(eos_token_id=2), 16, [10, 2, 12], [10, 2], FinishReason.STOP, None),
        (StopRules(), 2, [10, 11, 12], [10, 11], FinishReason.LENGTH, None),
        (StopRules(eos_token_id=None), 16, [10, 2, 12], [10, 2, 12], None, None),
        (StopRules(eos_token_id=42, stop_token_ids=frozenset({42})), 1, [42], [42], FinishReason.STOP, None),
    ],
    ids=["stop id trims", "EOS trims", "max_tokens trims", "ignored EOS goes on", "EOS before stop id before length"],
)
def test_golden_stops_with_several_tokens_in_one_step(make_bench, stop, max_tokens, tokens, kept, reason, stop_reason):
    bench = make_bench()
    request = bench.add(4, max_tokens=max_tokens, stop=stop)

    bench.plan()
    [output] = bench.deliver({request.key: tokens})

    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == (kept, reason, stop_reason)


def test_stops_work_the_same_with_one_token_a_step(make_bench):
    bench = make_bench()
    request = bench.add(4, stop=StopRules(stop_token_ids=frozenset({42})))

    for token in (10, 42):
        bench.step({request.key: [token]})

    assert request.token_ids[-2:] == [10, 42]
    assert request.status is RequestStatus.FINISHED_STOPPED


def test_a_partial_prefill_gives_no_output(make_bench):
    bench = make_bench(max_num_batched_tokens=8)
    bench.add(20)

    bench.plan()

    assert bench.deliver() == []


def test_the_youngest_running_request_makes_room_and_comes_back_first(make_bench):
    bench = make_bench(num_blocks=11)
    old, young = bench.add(80, max_tokens=40), bench.add(80, max_tokens=40)

    bench.run()

    assert (old.num_preemptions, young.num_preemptions > 0) == (0, True)
    assert old.num_output_tokens == young.num_output_tokens == 40


def test_nobody_is_admitted_in_a_step_that_preempted(make_bench):
    bench = make_bench(num_blocks=11)
    bench.add(80), bench.add(78)
    bench.step()
    bench.add(1)

    scheduled = bench.step()

    assert bench.scheduler.states.num_preemptions == 1
    assert list(scheduled) == [1]


def test_the_token_of_a_request_preempted_while_it_ran_is_delivered(make_bench):
    """vLLM's vector: 11 blocks of 16, two prompts of 80; the second is preempted while its step is in flight."""
    bench = make_bench(num_blocks=11, enable_caching=False)
    first, second = bench.add(80), bench.add(80)
    bench.plan()
    bench.plan()
    assert second.status is RequestStatus.PREEMPTED

    outputs = {output.request.key: output.new_token_ids for output in bench.deliver({first.key: [41], second.key: [42]})}

    assert outputs == {first.key: [41], second.key: [42]}


def test_a_preempted_request_resumes_with_all_its_tokens(make_bench):
    bench = make_bench(num_blocks=11, enable_caching=False)
    old, young = bench.add(80, max_tokens=3), bench.add(80, max_tokens=20)

    bench.run(depth=2)

    resumed = [new for plan in bench.plans for new in plan.new_requests if new.key == young.key][-1]
    assert len(resumed.token_ids) > 80
    assert resumed.num_prompt_tokens == 80
    assert old.num_output_tokens == 3


def test_two_steps_in_flight_never_plan_past_max_tokens(make_bench):
    bench = make_bench()
    request = bench.add(10, max_tokens=3)

    bench.run(depth=2)

    assert sum(plan.total_num_scheduled_tokens for plan in bench.plans) == 12
    assert request.num_output_tokens == 3


def test_a_request_that_stopped_in_one_step_is_dropped_from_the_next_ones_result(make_bench):
    bench = make_bench()
    request = bench.add(10, stop=StopRules(eos_token_id=2))
    bench.plan()
    bench.plan()

    [output] = bench.deliver({request.key: [2]})

    assert output.finish_reason is FinishReason.STOP
    assert bench.deliver({request.key: [7]}) == []
    assert request.token_ids[-1] == 2


def test_blocks_of_an_ended_request_come_free_when_the_plan_that_names_them_is_back(make_bench):
    bench = make_bench(num_blocks=11)
    request = bench.add(40)
    bench.plan()

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)
    assert bench.num_free == 7

    bench.deliver()
    assert bench.num_free == 10


def test_golden_abort_while_the_finishing_step_is_in_flight_wins(make_bench):
    bench = make_bench()
    request = bench.add(10, max_tokens=1)
    bench.plan()

    bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)

    assert bench.deliver() == []
    assert request.status is RequestStatus.FINISHED_ABORTED


def test_ending_twice_or_ending_strangers_does_nothing(make_bench):
    bench = make_bench()
    request = bench.add(10)

    first = bench.scheduler.finish_requests([request.key, 999, request.key], RequestStatus.FINISHED_ABORTED)
    second = bench.scheduler.finish_requests([request.key], RequestStatus.FINISHED_ABORTED)

    assert (first, second) == ([request], [])


def test_the_worker_is_told_to_forget_what_ended(make_bench):
    bench = make_bench()
    gone, stays = bench.add(10), bench.add(10)
    bench.step()

    bench.scheduler.finish_requests([gone.key], RequestStatus.FINISHED_ABORTED)

    assert bench.plan().removed_keys == [gone.key]
    assert bench.plan().removed_keys == []
    assert stays.status is RequestStatus.RUNNING


def test_a_lost_worker_costs_no_token_and_no_place(make_bench):
    bench = make_bench(num_blocks=200)
    requests = [bench.add(20, max_tokens=5) for _ in range(4)]
    bench.step()
    bench.plan()

    bench.scheduler.forget_worker()
    bench.in_flight.clear()
    plan = bench.plan()

    assert [new.key for new in plan.new_requests] == [request.key for request in requests]
    assert all(len(new.token_ids) == 21 and new.num_computed_tokens % 16 == 0 for new in plan.new_requests)
    bench.deliver()
    bench.run()
    assert [request.num_output_tokens for request in requests] == [5] * 4
    assert bench.num_free == 199


def test_larger_priorities_are_served_first_and_equals_by_arrival(make_bench):
    bench = make_bench(policy="priority", max_num_seqs=4)
    for priority in (1, 2, 2, 3):
        bench.add(10, priority=priority)

    assert [new.key for new in bench.plan().new_requests] == [4, 2, 3, 1]


def test_fcfs_ignores_priorities(make_bench):
    bench = make_bench()
    for priority in (0, 5, 9):
        bench.add(10, priority=priority)

    assert [new.key for new in bench.plan().new_requests] == [1, 2, 3]


def test_an_urgent_arrival_preempts_the_least_urgent_when_slots_are_short(make_bench):
    bench = make_bench(policy="priority", max_num_seqs=2)
    low, mid = bench.add(10, priority=0), bench.add(10, priority=1)
    bench.step()

    urgent = bench.add(10, priority=5)
    scheduled = bench.step()

    assert set(scheduled) == {mid.key, urgent.key}
    assert low.status is RequestStatus.PREEMPTED


def test_an_urgent_arrival_preempts_when_blocks_are_short(make_bench):
    bench = make_bench(policy="priority", num_blocks=11)
    low = bench.add(100, priority=0)
    bench.step()

    urgent = bench.add(100, priority=5)

    assert list(bench.step()) == [urgent.key]
    assert low.status is RequestStatus.PREEMPTED


def test_an_urgent_arrival_that_found_room_is_not_admitted_in_a_step_that_preempted_for_another_reason(make_bench):
    """It found the last free block, which the first running request then took; the second one was preempted."""
    bench = make_bench(policy="priority", num_blocks=12)
    first, second = bench.add(80), bench.add(80)
    bench.step()
    bench.add(1, priority=5)

    scheduled = bench.step()

    assert list(scheduled) == [first.key]
    assert second.status is RequestStatus.PREEMPTED


def test_an_equal_arrival_preempts_nobody(make_bench):
    bench = make_bench(policy="priority", max_num_seqs=1)
    first = bench.add(10, priority=1)
    bench.step()

    bench.add(10, priority=1)

    assert list(bench.step()) == [first.key]


def test_nobody_is_preempted_for_an_arrival_that_would_not_fit_anyway(make_bench):
    bench = make_bench(policy="priority", num_blocks=11)
    bench.add(96, priority=9)
    low = bench.add(30, priority=0)
    bench.step()

    bench.add(120, priority=5)
    bench.step()

    assert low.num_preemptions == 0


def test_an_illegal_move_is_a_bug_that_shows(make_bench):
    request = make_bench().add(4)

    with pytest.raises(ValueError, match="WAITING -> PREEMPTED is not a legal move"):
        request.move_to(RequestStatus.PREEMPTED)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("limits", [{}, {"num_blocks": 12}, {"max_num_batched_tokens": 48}, {"enable_caching": False}])
def test_golden_same_tokens_however_they_were_scheduled(make_bench, depth, limits):
    """Plain, tiny pool with preemptions, chunked at 48, no cache; one or two steps in flight."""

    def outputs(bench):
        bench.next_token = lambda key, length: (key * 7919 + length * 104_729) % 1000
        requests = [bench.add(size, max_tokens=30) for size in (5, 40, 64, 100)]
        bench.run(depth=depth)
        return [request.token_ids[request.num_prompt_tokens :] for request in requests]

    bench = make_bench(**limits)

    assert outputs(bench) == outputs(make_bench())
    assert (bench.scheduler.states.num_preemptions > 0) == ("num_blocks" in limits)


def test_nothing_is_in_flight_of_a_worker_that_was_lost(make_bench):
    bench = make_bench()
    request = bench.add(5)
    bench.plan()
    before = list(bench.scheduler.states.in_flight)

    bench.scheduler.forget_worker()

    assert (before, bench.scheduler.states.in_flight) == ([request], [])


def test_an_urgent_arrival_that_lacks_one_block_takes_it_at_once(make_bench):
    bench = make_bench(num_blocks=6, block_size=4, policy="priority", enable_caching=False)
    idle = bench.add(11, max_tokens=5)
    bench.step()
    urgent = bench.add(9, max_tokens=1, priority=1)

    plan = bench.plan()

    assert [new.key for new in plan.new_requests] == [urgent.key]
    assert idle.status is RequestStatus.PREEMPTED


def test_a_request_that_must_not_be_planned_now_reserves_one_seat(make_bench):
    """It was preempted while a plan was in flight, whose token is not known yet."""
    bench = make_bench(max_num_seqs=3)
    held = bench.add(3)
    bench.plan()
    bench.scheduler.states.preempt(held)
    others = [bench.add(3) for _ in range(3)]

    assert bench.plan().num_scheduled_tokens() == {other.key: 3 for other in others[:2]}
