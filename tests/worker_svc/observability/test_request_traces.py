"""A worker's spans and logs of requests that are preempted, aborted, paused or lost."""

import asyncio

import numpy as np
import pytest
import structlog

from tests.otlp_receiver import ERROR, OtlpReceiver, has
from tetrad.services.errors import InvalidRequest
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.observability.tracing import NoTracer
from tetrad.services.request_context import RequestContext
from tetrad.worker_svc.core.plan import CachedRequests, ModelRunnerOutput, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.observability.request_traces import RequestTraces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = RequestContext("r-1", f"00-{TRACE}-00f067aa0ba902b7-01")
NONE = np.zeros(0, np.int64)
REQUEST = NewRequest(7, "cmpl-r-1", np.array([1, 2]), 2, 0, 2, np.array([[1]]), SamplingSpec(), context=CONTEXT)


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
async def traces(receiver):
    tracer = open_tracer("worker", receiver.endpoint)
    yield RequestTraces(tracer, pause_s=0.01)
    tracer.close()


def plan(*, new=(), removed=()) -> SchedulerOutput:
    return SchedulerOutput(1, new, CachedRequests(NONE, NONE, NONE, NONE, NONE), removed_handles=removed)


def run(traces, *, new=(), removed=(), sampled=(), failures=()) -> None:
    """Note one step, from its plan to its result."""
    traces.note_plan(plan(new=new, removed=removed))
    note_result(traces, sampled=sampled, failures=failures)


def note_result(traces, *, sampled=(), failures=()) -> None:
    handles = np.array(sampled, np.uint32)
    traces.note_result(ModelRunnerOutput(1, handles, handles, failures=failures, compute_seconds=0.001))


async def test_a_request_that_is_preempted_has_its_phases_twice(traces, receiver):
    for _ in range(2):
        run(traces, new=[REQUEST], sampled=[7])
        run(traces, sampled=[7])
        run(traces, removed=[7])

    spans = receiver.wait(TRACE, has(*2 * ("worker.prefill", "worker.decode")))
    assert [span.attributes["tetrad.tokens"] for span in spans] == [1, 1, 1, 1]


async def test_a_request_that_pauses_has_a_span_for_each_time_that_it_runs(traces, receiver):
    run(traces, new=[REQUEST], sampled=[7])
    run(traces, sampled=[7])
    await asyncio.to_thread(receiver.wait, TRACE, has("worker.decode"))
    run(traces, sampled=[7])
    run(traces, removed=[7])

    assert len(receiver.wait(TRACE, has("worker.prefill", *2 * ["worker.decode"]))) == 3


async def test_a_step_that_takes_longer_than_a_pause_is_none(traces, receiver):
    """A large model on a CPU: one span for a phase, none for a token."""
    run(traces, new=[REQUEST], sampled=[7])
    for _ in range(2):
        traces.note_plan(plan())
        await asyncio.sleep(0.05)
        note_result(traces, sampled=[7])
    run(traces, removed=[7])

    [_, decode] = receiver.wait(TRACE, has("worker.prefill", "worker.decode"))
    assert decode.attributes["tetrad.tokens"] == 2


async def test_what_is_left_ends_with_the_stream(traces, receiver):
    run(traces, new=[REQUEST], sampled=[7])

    traces.close()

    assert receiver.wait(TRACE, has("worker.prefill", "worker.decode"))


async def test_a_request_that_fails_alone_ends_its_span_with_the_reason(traces, receiver):
    run(traces, new=[REQUEST], failures=[(7, InvalidRequest("no", reason="TOO_ODD"))])

    [span] = receiver.wait(TRACE, has("worker.prefill"))
    assert (span.status, span.reason) == (ERROR, "TOO_ODD")


async def test_a_failure_is_logged_with_the_requests_ids_whether_or_not_it_is_traced():
    traces = RequestTraces(NoTracer())

    with structlog.testing.capture_logs() as lines:
        run(traces, new=[REQUEST], failures=[(7, InvalidRequest("no", reason="TOO_ODD"))])

    [line] = [line for line in lines if line["event"] == "request.failed"]
    assert {"request_id": "r-1", "trace_id": TRACE, "internal_id": "cmpl-r-1", "reason": "TOO_ODD"}.items() <= line.items()
