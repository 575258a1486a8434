"""Metrics of an engine core's steps, where steps lost with a worker do not count, and of its state at a scrape."""

from types import SimpleNamespace

import pytest

from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.observability import metrics as module
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.sessions.sessions import Sessions


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set: clock[0] seconds."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def value(metrics: EngineMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"tetrad:engine_{name}", labels) or 0.0


def test_a_step_takes_from_the_answer_before_it_while_two_are_in_flight(clock):
    metrics = EngineMetrics()

    for at, plan in ((0.0, 1), (1.0, 2)):
        clock[0] = at
        metrics.note_plan(SchedulerOutput(plan, total_num_scheduled_tokens=8))
    for at, plan in ((4.0, 1), (6.0, 2)):
        clock[0] = at
        metrics.note_result(plan)

    assert value(metrics, "worker_round_trip_seconds_sum") == (4 - 0) + (6 - 1)
    assert value(metrics, "step_seconds_sum") == (4 - 0) + (6 - 4)
    assert value(metrics, "step_tokens_sum") == 16


def test_time_without_work_is_in_no_step(clock):
    metrics = EngineMetrics()

    for at in (0.0, 100.0):
        clock[0] = at
        metrics.note_plan(SchedulerOutput(int(at)))
        clock[0] = at + 2
        metrics.note_result(int(at))

    assert value(metrics, "step_seconds_sum") == 4


def test_what_a_lost_worker_was_sent_is_no_round_trip(clock):
    metrics = EngineMetrics()
    metrics.note_plan(SchedulerOutput(1))

    metrics.note_loss("STEP_TIMEOUT")
    metrics.note_result(1)

    assert value(metrics, "worker_round_trip_seconds_count") == 0
    assert value(metrics, "worker_losses_total", reason="STEP_TIMEOUT") == 1


def test_a_timed_call_is_observed_and_returns_what_it_would(clock):
    metrics = EngineMetrics()

    assert metrics.timed(metrics.schedule_seconds, lambda plan: plan + 1)(2) == 3

    assert value(metrics, "schedule_seconds_count") == 1


def test_a_scrape_iterates_over_nothing_that_the_engine_may_change_meanwhile(make_bench):
    """It runs on another thread."""

    class Changing(dict):
        def values(self):
            raise RuntimeError("dictionary changed size during iteration")

    adapters = Adapters(AdapterLimits(1, 1), ORDERS_OF_ARRIVAL["fcfs"])
    adapters.registry.versions = Changing()
    bench, metrics = make_bench(adapters=adapters), EngineMetrics()
    bench.add(5, max_tokens=3)
    bench.step()
    metrics.watch(
        SimpleNamespace(scheduler=bench.scheduler, sessions=Sessions(), sleeper=SimpleNamespace(is_asleep=False, level=0))
    )

    assert value(metrics, "requests_running") == 1
    assert value(metrics, "requests_waiting", reason="capacity") == 0
    assert value(metrics, "steps_total") == 1
    assert value(metrics, "kv_usage") > 0


def test_no_count_of_waiting_requests_is_negative_while_requests_come_during_a_scrape(make_bench, monkeypatch):
    """A scrape runs on another thread: the step loop may add requests between two counts of it."""
    bench, metrics = make_bench(), EngineMetrics()
    states = bench.scheduler.states

    class Growing:
        """Requests of which one more waits at each count."""

        def __init__(self):
            self.size = 0

        def __len__(self):
            self.size += 1
            return self.size

    monkeypatch.setattr(states, "_waiting_for_grammar", Growing())
    monkeypatch.setattr(states, "_waiting_for_lora", Growing())
    metrics.watch(
        SimpleNamespace(scheduler=bench.scheduler, sessions=Sessions(), sleeper=SimpleNamespace(is_asleep=False, level=0))
    )

    assert value(metrics, "requests_waiting", reason="capacity") == 0
    assert value(metrics, "requests_waiting", reason="grammar") > 0
    assert value(metrics, "requests_waiting", reason="adapter") > 0


@pytest.mark.parametrize(("version", "shown"), [("", "default"), ("step-100", "step-100")])
def test_the_version_of_the_weights_is_a_label(make_bench, version, shown):
    metrics, sessions, scheduler = EngineMetrics(), Sessions(), make_bench().scheduler
    sessions.weight_version = version
    sleeper = SimpleNamespace(is_asleep=False, level=0)

    metrics.watch(SimpleNamespace(scheduler=scheduler, sessions=sessions, sleeper=sleeper))

    assert value(metrics, "weights_info", weight_version=shown) == 1
