"""Calls of many sequences beside other calls: the rows of each in a step, so that the step takes little longer than without."""

import itertools
from dataclasses import dataclass, field

import pytest

from tests.engine_core_svc.scheduler.test_fan_outs import fan_out
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.scheduler.call_counts import CallCounts
from tetrad.engine_core_svc.scheduler.fan_out_throttle import NO_SHARE, MeasuringFanOutThrottle


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


def slowdown(bench, device, quiet_s, max_tokens):
    """Return the p99 of four requests beside a call of 1,024 sequences, over their p99 of `quiet_s` seconds before it."""
    quiet = p99(device.run(bench, 4, device.seconds(quiet_s)))
    large = fan_out(bench, 1, 1024, max_tokens=max_tokens)
    return p99(device.run(bench, 4, lambda: all(each.is_finished for each in large))) / quiet


@pytest.mark.parametrize(("base_s", "row_s"), [(0.1, 0.004), (0.002, 0.00007), (0.01, 0.00002)], ids=["cpu", "sim", "gpu"])
def test_a_thousand_sequences_beside_others_slow_them_down_by_half(make_bench, base_s, row_s):
    device = Device(base_s, row_s)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))

    assert slowdown(bench, device, quiet_s=1000 * base_s, max_tokens=5) <= 2.2


def test_work_that_the_services_do_later_is_not_counted_as_the_time_of_a_step_alone(make_bench):
    """Rows take their time while later steps run: every step takes longer for as long as services have outputs to process."""
    device = LateServices(0.001, 0.00005)
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, device.clock))

    assert slowdown(bench, device, quiet_s=1, max_tokens=30) <= 3


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


def test_a_step_that_passes_over_many_calls_hides_none_of_them_from_the_next_one(make_bench):
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, lambda: 0.0))
    for number in range(1, 101):
        fan_out(bench, number, 2, max_tokens=1)
    bench.add(3, max_tokens=1)

    assert len(bench.step()) < 130
    bench.step()
    assert not bench.scheduler.has_requests


@pytest.mark.parametrize("max_num_seqs", [150, 256])
def test_a_new_call_does_not_wait_behind_many_calls_that_have_their_rows(make_bench, max_num_seqs):
    """Whether it finds a free seat, or gets one of a call that has several."""
    bench = make_bench(max_num_seqs=max_num_seqs, fan_outs=MeasuringFanOutThrottle(1.5, lambda: 0.0))
    for number in range(1, 141):
        fan_out(bench, number, 4, max_tokens=100)
    for _ in range(5):
        bench.step()

    new = bench.add(3, max_tokens=1)

    assert new.key in bench.step()


def test_a_call_whose_first_row_has_ended_does_not_wait_behind_many_that_have_theirs(make_bench):
    bench = make_bench(max_num_seqs=256, fan_outs=MeasuringFanOutThrottle(1.5, lambda: 0.0))
    for number in range(1, 201):
        fan_out(bench, number, 4, max_tokens=100)
    first, second = (bench.add(3, call=201, max_tokens=max_tokens) for max_tokens in (5, 100))
    while not first.is_finished:
        bench.step()

    assert second.key in bench.step()


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
