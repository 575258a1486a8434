"""Calls of many sequences take turns with other calls, in the queue, in seats, in blocks, and in the time of a step."""

import itertools
from dataclasses import dataclass, field

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import ref
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.fan_out_throttle import NO_SHARE, MeasuringFanOutThrottle
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.scheduler.policy import ORDERS, RequestQueue


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


def test_a_request_that_is_passed_over_hides_its_call_until_the_next_look():
    queue = RequestQueue(ORDERS["fcfs"])
    requests = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, key // 2)) for key in range(2, 6)]
    for request in requests:
        queue.add(request)

    queue.pass_over(queue.peek())
    second = queue.peek()
    queue.pass_over(second)

    assert (second, queue.peek()) == (requests[2], None)
    queue.look_again()
    assert queue.peek() is requests[0]


def test_a_sequence_that_was_displaced_by_a_preempted_one_is_passed_over_once():
    queue = RequestQueue(ORDERS["fcfs"])
    first, second = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, 1)) for key in (1, 2)]
    for request in (first, second):
        queue.add(request)
    queue.take(first)
    queue.add(first)
    queue.take(first)

    queue.pass_over(queue.peek())

    assert queue.peek() is None


def test_a_sequence_that_is_served_out_of_turn_has_the_place_of_its_arrival():
    """Such as one that runs alone, since it may have crashed a worker."""
    queue = RequestQueue(ORDERS["fcfs"])
    requests = [Request(key, f"r{key}", [1], 1, 9, sequence_number=key, call=(1, 1)) for key in (1, 2)]
    for request in requests:
        queue.add(request)

    queue.only = 2
    queue.take(queue.peek())

    assert requests[1].place == 2.0


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


def test_no_further_row_gets_the_seat_of_a_request_that_must_not_be_planned_now(make_bench):
    bench = make_bench(max_num_seqs=4, policy="priority")
    fan_out(bench, 1, 8, max_tokens=50)
    bench.step()
    bench.add(3, priority=1).is_held = True
    others = [bench.add(3) for _ in range(2)]

    assert admitted(bench, 1) == [[others[0].key]]


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


# --- the time of a step --------------------------------------------------------------------------------------------------


@dataclass
class Device:
    """Runs a scheduler over time: a step takes base_s, and row_s for each of its tokens. Each client waits for its answer."""

    base_s: float
    row_s: float
    now: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def clock(self):
        return self.now

    def step(self, num_tokens):
        """Return the duration of a step."""
        return self.base_s + self.row_s * num_tokens

    def run(self, bench, num_clients, until, *, thinks_s=0.0):
        """Step until `until` says so; return the latencies of the clients' requests of 4 tokens."""
        self.latencies.clear()
        clients = [(bench.add(3, max_tokens=4), self.now) for _ in range(num_clients)]
        while not until():
            plan = bench.plan()
            num_tokens = sum(plan.num_scheduled_tokens().values()) if plan else 0
            self.now += self.step(num_tokens) if plan else thinks_s
            if plan:
                bench.deliver()
            for index, (request, since) in enumerate(clients):
                if request.is_finished:
                    self.latencies.append(self.now - since)
                    clients[index] = bench.add(3, max_tokens=4), self.now
        bench.scheduler.finish_requests([request.key for request, _ in clients], RequestStatus.FINISHED_ABORTED)
        return sorted(self.latencies)

    def seconds(self, seconds):
        end = self.now + seconds
        return lambda: self.now >= end


@dataclass
class LateServices(Device):
    """A device whose rows take no time in their own step: services process them in the time of later steps."""

    backlog_s: float = 0.0

    def step(self, num_tokens):
        """See Device."""
        processed_s = min(self.backlog_s, 8 * self.base_s)
        self.backlog_s += self.row_s * num_tokens - processed_s
        return self.base_s + processed_s


def p99(values):
    return values[int(len(values) * 0.99)]


@pytest.mark.parametrize(("base_s", "row_s"), [(0.1, 0.004), (0.002, 0.00007), (0.01, 0.00002)], ids=["cpu", "sim", "gpu"])
def test_a_thousand_sequences_beside_others_slow_them_down_by_half(make_bench, base_s, row_s):
    device = Device(base_s, row_s)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))
    quiet = p99(device.run(bench, 4, device.seconds(1000 * base_s)))

    large = fan_out(bench, 1, 1024, max_tokens=5)
    attacked = p99(device.run(bench, 4, lambda: all(each.is_finished for each in large)))

    assert attacked <= 2.2 * quiet


def test_work_that_the_services_do_later_is_not_counted_as_the_time_of_a_step_alone(make_bench):
    """Rows take their time while later steps run: every step takes longer for as long as services have outputs to process."""
    device = LateServices(0.001, 0.00005)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))
    quiet = p99(device.run(bench, 4, device.seconds(1)))

    large = fan_out(bench, 1, 1024, max_tokens=30)
    attacked = p99(device.run(bench, 4, lambda: all(each.is_finished for each in large)))

    assert attacked <= 3 * quiet


def test_a_call_alone_has_all_rows(make_bench):
    device = Device(0.1, 0.004)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))
    large = fan_out(bench, 1, 1024, max_tokens=5)

    device.run(bench, 0, lambda: all(each.is_finished for each in large))

    assert len(bench.plans) == 20


def test_calls_of_one_size_have_all_rows(make_bench):
    device = Device(0.1, 0.004)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))
    for number in (1, 2):
        fan_out(bench, number, 128, max_tokens=5)

    assert len(bench.step()) == 256


def test_further_rows_are_shared_evenly_by_large_calls(make_bench):
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, lambda: 0.0))
    throttle = bench.scheduler.fan_outs
    throttle._times.observe_base(1.0)
    throttle._times.observe_further(10, 1.5)
    while throttle._probe.takes_next_step():
        throttle._probe.note_base(1.0, is_measured=True)
    first, second = fan_out(bench, 1, 100, max_tokens=50), fan_out(bench, 2, 50, max_tokens=50)
    bench.add(3, max_tokens=50)
    for _ in range(10):
        scheduled = bench.step()

    rows = [sum(each.key in scheduled for each in call) for call in (first, second)]

    assert rows == [6, 6]


def test_clients_that_are_about_to_send_their_next_request_count_for_a_second(make_bench):
    device = Device(0.1, 0.004)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))
    device.run(bench, 4, device.seconds(5))

    fan_out(bench, 1, 512, max_tokens=500)
    device.now += 0.5
    beside = len(bench.step())
    device.now += 0.6
    later = [len(bench.step()) for _ in range(2)]

    assert beside < 32
    assert later[-1] == 256


def test_one_call_alone_is_never_limited():
    calls = CallCounts()
    throttle = MeasuringFanOutThrottle(1.5, itertools.count().__next__)
    for key in range(5):
        calls.add(Request(key, f"r{key}", [1], 1, 9, call=(1, 1)))

    assert throttle.share(calls) is NO_SHARE


def test_counts_follow_what_calls_do():
    calls = CallCounts()
    requests = [Request(key, f"r{key}", [1], 1, 9, call=(1, key // 3)) for key in range(5)]
    for request in requests:
        calls.add(request)
    calls.start(requests[0])
    calls.start(requests[1])

    assert (calls.num_calls, calls.smallest, calls.largest) == (2, 2, 3)
    assert (calls.num_running((1, 0)), calls.num_running((1, 1)), calls.num_running_calls) == (2, 0, 1)
    calls.stop(requests[0])
    calls.stop(requests[1])
    for request in requests[:3]:
        calls.finish(request)
    assert (calls.num_calls, calls.largest, calls.num_running_calls) == (1, 2, 0)


@pytest.mark.parametrize(
    ("num_sequences", "most"), [(0, 0), (2, 0), (3, 1), (6, 2), (7, 2), (8, 3), (10, 5), (11, 6), (12, 7), (99, 7)]
)
def test_an_even_share_is_what_small_calls_leave(num_sequences, most):
    """Calls of 2, 3 and 7 sequences."""
    calls = CallCounts()
    for key, number in enumerate([1] * 2 + [2] * 3 + [3] * 7):
        calls.add(Request(key, f"r{key}", [1], 1, 9, call=(1, number)))

    assert calls.most_each(num_sequences) == most
