"""A worker's spans and logs of requests that are preempted, aborted, paused or lost."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import structlog

from tests.otlp_receiver import ERROR, OtlpReceiver, has
from tetrad.services.errors import InvalidRequest
from tetrad.services.observability import otlp
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.observability.tracing import NoTracer
from tetrad.services.request_context import RequestContext
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput, Pooled
from tetrad.worker_svc.observability.request_traces import RequestTraces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = RequestContext("r-1", f"00-{TRACE}-00f067aa0ba902b7-01")
NONE = np.zeros(0, np.int64)
COMPUTE_S = 0.125
REQUEST = NewRequest(7, "cmpl-r-1", np.array([1, 2]), 2, 0, 2, np.array([[1]]), SamplingSpec(), context=CONTEXT)


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
async def traces(receiver, monkeypatch):
    monkeypatch.setattr(otlp, "_SEND_EVERY_MS", 20)
    tracer = open_tracer("worker", receiver.endpoint)
    yield RequestTraces(tracer, pause_s=0.01)
    tracer.close()


def plan(*, new=(), cached=(), removed=()) -> SchedulerOutput:
    return SchedulerOutput(1, new, CachedRequests(np.array(cached), NONE, NONE, NONE, NONE), removed_handles=removed)


def run(traces, *, new=(), cached=None, removed=(), **result) -> None:
    """Note one step, from its plan to its result; `cached`: those that run on, by default all that got a token."""
    known = {each.handle for each in new}
    running = [handle for handle in result.get("sampled", ()) if handle not in known] if cached is None else cached
    traces.note_plan(plan(new=new, cached=running, removed=removed))
    note_result(traces, **result)


def note_result(traces, *, sampled=(), pooled=(), failures=()) -> None:
    handles = np.array(sampled, np.uint32)
    answers = [Pooled(handle, np.zeros(1, np.float32)) for handle in pooled]
    traces.note_result(ModelRunnerOutput(1, handles, handles, pooled=answers, failures=failures, compute_seconds=COMPUTE_S))


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
        traces.note_plan(plan(cached=[7]))
        await asyncio.sleep(0.05)
        note_result(traces, sampled=[7])
    run(traces, removed=[7])

    [_, decode] = receiver.wait(TRACE, has("worker.prefill", "worker.decode"))
    assert decode.attributes["tetrad.tokens"] == 2


async def test_a_prompt_that_takes_several_steps_has_the_time_of_all(traces, receiver):
    run(traces, new=[REQUEST])
    run(traces, cached=[7])
    run(traces, sampled=[7])

    prefill, *_ = await asyncio.to_thread(receiver.wait, TRACE, has("worker.prefill"))
    assert prefill.attributes["tetrad.compute_seconds"] == 3 * COMPUTE_S


async def test_several_tokens_of_one_step_take_its_time_once(traces, receiver):
    run(traces, new=[REQUEST], sampled=[7])
    run(traces, cached=[7], sampled=[7, 7, 7])
    run(traces, removed=[7])

    [_, decode] = receiver.wait(TRACE, has("worker.prefill", "worker.decode"))
    assert (decode.attributes["tetrad.tokens"], decode.attributes["tetrad.compute_seconds"]) == (3, COMPUTE_S)


async def test_a_prompt_that_is_pooled_or_aborted_lasts_as_long_as_it_ran(traces, receiver):
    pooled, aborted = REQUEST, replace(REQUEST, handle=8)
    run(traces, new=[pooled, aborted])
    run(traces, cached=[7, 8], pooled=[7])
    run(traces, removed=[8])

    for span in receiver.wait(TRACE, has("worker.prefill", "worker.prefill")):
        assert span.attributes["tetrad.compute_seconds"] == 2 * COMPUTE_S
        assert span.duration >= COMPUTE_S


async def test_a_pooled_prompt_is_sent_without_a_further_step(traces, receiver):
    run(traces, new=[REQUEST], pooled=[7])

    assert await asyncio.to_thread(receiver.wait, TRACE, has("worker.prefill"))


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
