"""The engine core's spans of a request: one for each phase that it reached, without gaps, the last with its end."""

import time

import pytest

from tests.otlp_receiver import ERROR, OtlpReceiver, has
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.services.observability import otlp
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.request_context import RequestContext

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT = RequestContext("r-1", f"00-{TRACE}-00f067aa0ba902b7-01")


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def spans(receiver, monkeypatch):
    monkeypatch.setattr(otlp, "_SEND_EVERY_MS", 20)
    tracer = open_tracer("engine-core", receiver.endpoint)
    yield RequestSpans(tracer)
    tracer.close()


def request(status: RequestStatus, *seconds_ago: float, context: RequestContext = CONTEXT) -> Request:
    """Return a request that was queued, scheduled and had its first token so long ago, as far as it came."""
    times = [time.monotonic() - each for each in seconds_ago] + [0.0] * (3 - len(seconds_ago))
    names = ("queued_at", "scheduled_at", "first_token_at")
    fields = dict(zip(names, times, strict=True))
    return Request(1, "cmpl-r-1", [1, 2, 3], 2, 9, status=status, context=context, **fields)


def test_phases_follow_each_other_without_a_gap(spans, receiver):
    spans.record(request(RequestStatus.FINISHED_STOPPED, 3.0, 2.0, 1.5))

    found = receiver.wait(TRACE, has("queue", "prefill", "decode"))
    assert [span.name for span in found] == ["queue", "prefill", "decode"]
    assert [round(span.duration, 2) for span in found] == [1.0, 0.5, 1.5]
    assert [found[0].end, found[1].end] == pytest.approx([found[1].start, found[2].start], abs=1e-6)


def test_a_request_that_was_never_scheduled_has_only_waited(spans, receiver):
    spans.record(request(RequestStatus.FINISHED_ERROR, 2.0))

    [span] = receiver.wait(TRACE, has("queue"))
    assert (span.name, span.status, span.reason) == ("queue", ERROR, "FINISHED_ERROR")


def test_a_lost_worker_is_an_event_of_the_phase_it_was_lost_in(spans, receiver):
    lost = request(RequestStatus.FINISHED_LENGTH_CAPPED, 3.0, 2.0, 1.0)

    spans.note_loss([lost])
    spans.record(lost)

    found = {span.name: span.events for span in receiver.wait(TRACE, has("queue", "prefill", "decode"))}
    assert found == {"queue": [], "prefill": [], "decode": ["worker_lost"]}


def test_a_lost_worker_is_of_its_phase_though_the_wall_clock_was_set_back_since(spans, receiver, monkeypatch):
    lost = request(RequestStatus.FINISHED_LENGTH_CAPPED, 3.0, 2.0, 1.0)
    spans.note_loss([lost])

    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() - 60_000_000_000)
    spans.record(lost)

    found = {span.name: span.events for span in receiver.wait(TRACE, has("queue", "prefill", "decode"))}
    assert found == {"queue": [], "prefill": [], "decode": ["worker_lost"]}


def test_a_request_in_no_trace_has_no_spans(spans, receiver):
    spans.record(request(RequestStatus.FINISHED_STOPPED, 3.0, 2.0, 1.0, context=RequestContext("r-2")))
    spans.record(request(RequestStatus.FINISHED_STOPPED, 3.0, 2.0, 1.0))

    assert len(receiver.wait(TRACE, has("decode"))) == len(receiver.spans()) == 3
