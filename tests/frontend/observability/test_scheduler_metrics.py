"""Sums over the schedulers of present and former engine cores."""

from dataclasses import replace

import pytest

from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.engine.facts_wire import decode_engine_info
from tetrad.frontend.observability.scheduler_metrics import SchedulerMetrics
from tetrad.frontend.request.steps import SchedulerFacts
from tetrad.v1 import engine_core_pb2

FACTS = SchedulerFacts(1, 0, 0.5, 100, 10, 0, 0, 0, 0)


@pytest.fixture
def metrics():
    return SchedulerMetrics("tetrad", "model")


def num_queries(metrics):
    [family] = [family for family in metrics.collect() if family.name == "tetrad:prefix_cache_queries"]
    return family.samples[0].value


def facts(num_queries):
    return replace(FACTS, prefix_cache_queries=num_queries)


def process(epoch: int) -> EngineInfo:
    """Return the facts of an engine core's process, which its epoch identifies."""
    return decode_engine_info(engine_core_pb2.EngineInfo(epoch=epoch))


def test_an_engine_core_that_is_let_go_is_forgotten_but_not_what_it_counted(metrics):
    for number in range(100):
        metrics.note_engines({}, [number])
        metrics.note(number, facts(7))

    assert num_queries(metrics) == 700
    assert len(metrics._latest) == 1


def test_a_last_step_of_one_that_was_let_go_counts_nothing_twice(metrics):
    metrics.note_engines({}, [0])
    metrics.note(0, facts(7))
    metrics.note_engines({}, [1])

    metrics.note(0, facts(7))

    assert num_queries(metrics) == 7


def test_one_that_is_lost_and_comes_back_counts_on(metrics):
    metrics.note_engines({}, [0])
    metrics.note(0, facts(7))
    metrics.note_engines({}, [0])

    metrics.note(0, facts(9))

    assert num_queries(metrics) == 9


def test_one_that_was_restarted_counts_from_where_it_was(metrics):
    metrics.note_engines({}, [0])
    metrics.note(0, facts(7))

    metrics.note(0, facts(2))

    assert num_queries(metrics) == 9


def test_one_that_was_restarted_counts_on_even_if_others_kept_it_busy_meanwhile(metrics):
    metrics.note_engines({0: process(1)}, [0])
    metrics.note(0, facts(7))
    metrics.note_engines({0: process(2)}, [0])

    metrics.note(0, facts(8))

    assert num_queries(metrics) == 15


def test_one_that_is_let_go_and_found_again_counts_nothing_twice(metrics):
    """A name in DNS may lack an address for a moment; the engine core behind it then gets another number."""
    metrics.note_engines({0: process(1)}, [0])
    metrics.note(0, facts(7))
    metrics.note_engines({}, [])
    meanwhile = num_queries(metrics)
    metrics.note_engines({1: process(1)}, [1])
    found_again = num_queries(metrics)

    metrics.note(1, facts(9))

    assert (meanwhile, found_again, num_queries(metrics)) == (7, 7, 9)


def test_adapters_are_one_series_with_bounded_labels(metrics):
    """vLLM's lora_requests_info, which routers read: names of all engine cores, each once."""
    metrics.note_engines({}, [0, 1])
    metrics.note(0, replace(FACTS, running_loras=("b", "a"), waiting_loras=tuple(f"w{n:03}" for n in range(500))))
    metrics.note(1, replace(FACTS, running_loras=("b", "c")))

    [family] = [family for family in metrics.collect() if family.name == "tetrad:lora_requests_info"]

    [sample] = family.samples
    assert sample.labels["running_lora_adapters"] == "a,b,c"
    assert sample.labels["waiting_lora_adapters"] == ",".join(f"w{n:03}" for n in range(32))

    metrics.note_idle()
    [family] = [family for family in metrics.collect() if family.name == "tetrad:lora_requests_info"]
    assert family.samples[0].labels["running_lora_adapters"] == ""
