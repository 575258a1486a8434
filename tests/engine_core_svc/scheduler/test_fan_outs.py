"""Calls of many sequences take turns with other calls, in the queue, in seats and in blocks."""

import itertools

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tetrad.engine_core_svc.core.request import RequestStatus
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.fan_out_throttle import MeasuringFanOutThrottle
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState


def fan_out(bench, number, size, **fields):
    return [bench.add(3, call=number, **fields) for _ in range(size)]


def admitted(bench, num_steps):
    """Return the keys that each of the next steps admits."""
    found = []
    for _ in range(num_steps):
        plan = bench.plan()
        found.append([new.key for new in plan.new_requests])
        bench.deliver()
    return found


# --- the queue -----------------------------------------------------------------------------------------------------------


def test_sequences_of_a_call_take_turns_with_the_requests_that_wait_beside_them(make_bench):
    bench = make_bench(max_num_seqs=1)
    large = fan_out(bench, 1, 4, max_tokens=1)
    others = [bench.add(3, max_tokens=1) for _ in range(3)]

    order = [key for [key] in admitted(bench, 7)]

    assert order == [large[0].key, *(other.key for other in others), *(each.key for each in large[1:])]


def test_two_calls_alternate(make_bench):
    bench = make_bench(max_num_seqs=1)
    first, second = fan_out(bench, 1, 3, max_tokens=1), fan_out(bench, 2, 3, max_tokens=1)

    order = [key for [key] in admitted(bench, 6)]

    assert order == [each.key for pair in zip(first, second, strict=True) for each in pair]


def test_a_sequence_waits_for_those_alone_that_were_there_when_the_one_before_it_was_admitted(make_bench):
    """A new request arrives in every step; were they let past, the call would never get another turn."""
    bench = make_bench(max_num_seqs=1)
    large = [each.key for each in fan_out(bench, 1, 6, max_tokens=1)]
    order, num_waiting = [], []
    for _ in range(30):
        bench.add(3, max_tokens=1)
        [[key]] = admitted(bench, 1)
        order.append(key)
        if key in large:
            num_waiting.append(len(bench.scheduler.waiting) - (len(large) - len(num_waiting) - 1))

    places = [order.index(key) for key in large]
    assert [after - before - 1 for before, after in itertools.pairwise(places)] == num_waiting[:-1]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_requests_of_one_sequence_each_keep_the_order_of_arrival(make_bench, policy):
    bench = make_bench(max_num_seqs=1, policy=policy)
    requests = [bench.add(3, max_tokens=1) for _ in range(5)]

    assert admitted(bench, 5) == [[request.key] for request in requests]


def test_a_more_urgent_call_does_not_wait_for_turns_of_a_less_urgent_one(make_bench):
    bench = make_bench(max_num_seqs=1, policy="priority")
    fan_out(bench, 1, 2, max_tokens=1)
    urgent = fan_out(bench, 2, 3, max_tokens=1, priority=1)

    assert admitted(bench, 3) == [[each.key] for each in urgent]


def test_the_next_of_a_call_gets_the_place_of_one_that_is_aborted(make_bench):
    bench = make_bench(max_num_seqs=1)
    large = fan_out(bench, 1, 3, max_tokens=1)
    other = bench.add(3, max_tokens=1)
    bench.scheduler.finish_requests([large[0].key], RequestStatus.FINISHED_ABORTED)

    assert admitted(bench, 3) == [[large[1].key], [other.key], [large[2].key]]


def test_a_preempted_sequence_returns_before_the_others_of_its_call(make_bench):
    bench = make_bench(max_num_seqs=2)
    large = fan_out(bench, 1, 4, max_tokens=3)
    bench.step()
    bench.scheduler.states.preempt(large[1])
    bench.plans.clear()

    assert admitted(bench, 1) == [[large[1].key]]


def test_sequences_with_an_adapter_keep_their_turns_on_the_next_worker(make_bench):
    adapters = Adapters(AdapterLimits(1, 1), ORDERS_OF_ARRIVAL["fcfs"])
    bench = make_bench(max_num_seqs=1, adapters=adapters)
    adapters.worker_ready()
    adapter = adapters.resolve(ref(1))
    large = fan_out(bench, 1, 3, max_tokens=1, adapter=adapter)
    other = bench.add(3, max_tokens=1, adapter=adapter)

    adapters.loaded(adapter, b"digest")

    bench.scheduler.forget_worker()
    adapters.worker_ready()
    adapters.loaded(adapter, b"digest")

    assert admitted(bench, 4) == [[large[0].key], [other.key], [large[1].key], [large[2].key]]


# --- seats and blocks ----------------------------------------------------------------------------------------------------


def test_a_call_without_a_row_gets_one_of_the_largest_call_at_once(make_bench):
    bench = make_bench(max_num_seqs=4)
    large = fan_out(bench, 1, 8, max_tokens=50)
    bench.step()
    other = bench.add(3, max_tokens=5)

    assert admitted(bench, 1) == [[other.key]]
    assert [each.status for each in large[:4]] == [RequestStatus.RUNNING] * 3 + [RequestStatus.PREEMPTED]


def test_all_calls_without_rows_get_theirs_in_one_step(make_bench):
    bench = make_bench(max_num_seqs=4)
    fan_out(bench, 1, 8, max_tokens=50)
    bench.step()
    others = [bench.add(3, max_tokens=5) for _ in range(5)]

    assert admitted(bench, 1) == [[other.key for other in others[:3]]]
    assert bench.scheduler.states.num_preemptions == 3


def test_no_further_row_gets_a_seat_beside_a_request_that_must_not_be_planned_now(make_bench, compiled):
    bench = make_bench(max_num_seqs=4)
    held = bench.add(3, status=RequestStatus.WAITING_FOR_GRAMMAR)
    fan_out(bench, 1, 8, max_tokens=50)
    bench.step()
    others = [bench.add(3) for _ in range(2)]
    bench.scheduler.grammar_ready(held, GrammarState(Constraint(Language("regex", "")), compiled("regex", "a+")))
    held.is_held = True

    assert admitted(bench, 1) == [[others[0].key]]


def test_a_call_without_a_row_gets_a_free_seat_before_one_of_another_call(make_bench):
    bench = make_bench(max_num_seqs=4)
    fan_out(bench, 1, 3, max_tokens=50)
    bench.step()
    other = bench.add(3, max_tokens=5)

    assert admitted(bench, 1) == [[other.key]]
    assert bench.scheduler.states.num_preemptions == 0


def test_calls_with_one_row_each_are_not_preempted_for_another(make_bench):
    bench = make_bench(max_num_seqs=3)
    for _ in range(5):
        bench.add(3, max_tokens=9)
    bench.run()

    assert bench.scheduler.states.num_preemptions == 0


def test_a_less_urgent_call_takes_no_seat_of_a_more_urgent_one(make_bench):
    bench = make_bench(max_num_seqs=2, policy="priority")
    fan_out(bench, 1, 2, max_tokens=5, priority=1)
    bench.step()
    bench.add(3, max_tokens=5)
    bench.step()

    assert bench.scheduler.states.num_preemptions == 0


def test_rows_that_a_step_leaves_out_give_their_blocks_to_a_call_without_any(make_bench):
    """They hold 14 of 15 blocks; the prompt needs 3."""
    throttle = MeasuringFanOutThrottle(1.5, lambda: 0.0)
    bench = make_bench(max_num_seqs=20, num_blocks=16, block_size=4, enable_caching=False, fan_outs=throttle)
    fan_out(bench, 1, 14, max_tokens=2)
    bench.step()
    other = bench.add(9, max_tokens=1)

    assert admitted(bench, 1) == [[other.key]]
    bench.run()


def test_rows_that_a_step_leaves_out_keep_their_blocks_if_a_call_without_any_lacks_tokens_alone(make_bench):
    """They hold 30 of 50 blocks; the prompt needs 20, and more tokens than the step has left."""
    throttle = MeasuringFanOutThrottle(1.5, lambda: 0.0)
    options = {"max_num_batched_tokens": 80, "enable_chunked_prefill": False, "enable_caching": False, "fan_outs": throttle}
    bench = make_bench(max_num_seqs=40, num_blocks=51, block_size=4, **options)
    large = [bench.add(2, call=1, max_tokens=2) for _ in range(30)]
    bench.step()
    bench.add(80, max_tokens=1)

    assert list(bench.step()) == [large[0].key]
    assert bench.scheduler.states.num_preemptions == 0


def test_no_row_is_preempted_while_nothing_is_admitted(make_bench):
    bench = make_bench(max_num_seqs=4)
    large = fan_out(bench, 1, 8, max_tokens=50)
    bench.step()
    bench.add(3)
    bench.scheduler.admitting = False

    assert list(bench.step()) == [each.key for each in large[:4]]
