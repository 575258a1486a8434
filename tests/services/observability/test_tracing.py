"""Tracing: the spans sent when it is on, and no cost when it is off."""

import subprocess
import sys
import time

import pytest

from tests.otlp_receiver import ERROR, OtlpReceiver, has
from tetrad.services.errors import InvalidRequest
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.observability.tracing import spanned
from tetrad.services.request_context import NO_CONTEXT, RequestContext, bind_context
from tetrad.services.settings import ServiceSettings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = RequestContext("r-1", f"00-{TRACE}-00f067aa0ba902b7-01", "vendor=1")


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def tracer(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")  # each span at once, where many are sent once a second
    tracer = open_tracer("kitchen", receiver.endpoint)
    yield tracer
    tracer.close()


def test_a_service_that_does_not_trace_does_not_import_what_tracing_needs():
    modules = "engine_core_svc.service, tetrad.frontend.service, tetrad.tokenizer_svc.service, tetrad.worker_svc.service"
    source = f"import sys, tetrad.{modules}; print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"

    assert subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_tracing_that_is_off_passes_the_callers_context_on():
    tracer = open_tracer("kitchen", None)

    span = tracer.start_span("cook", tracer.start_trace("meal", CALLER).context)

    assert span.context == CALLER


def test_spans_nest_and_keep_what_others_store_in_the_trace(tracer, receiver):
    whole = tracer.start_trace("meal", CALLER, start_ns=10**18)
    part = tracer.start_span("cook", whole.context, start_ns=10**18 + 1, attributes={"eggs": 2})
    part.end(at_ns=10**18 + 2)
    whole.end()

    first, second = receiver.wait(TRACE, has("meal", "cook"))
    assert (first.name, first.parent_id, first.service) == ("meal", "00f067aa0ba902b7", "tetrad-kitchen")
    assert (second.parent_id, second.attributes) == (first.span_id, {"eggs": 2})
    assert whole.context.request_id == "r-1"
    assert whole.context.tracestate == "vendor=1"


def test_only_a_call_begins_a_trace(tracer, receiver):
    lone = tracer.start_span("cook", NO_CONTEXT)
    lone.end()
    root = tracer.start_trace("meal", NO_CONTEXT)
    root.end()

    assert lone.context is NO_CONTEXT
    [span] = receiver.wait(root.context.trace_id, has("meal"))
    assert span.parent_id == ""
    assert {span.name for span in receiver.spans()} == {"meal"}


def test_what_fails_inside_a_span_is_its_reason_and_not_its_text(tracer, receiver):
    with bind_context(CALLER), pytest.raises(InvalidRequest), spanned(tracer, "cook"):
        raise InvalidRequest("the client wrote: secret", reason="BURNT")

    [span] = receiver.wait(TRACE, has("cook"))
    assert (span.status, span.reason, span.attributes) == (ERROR, "BURNT", {"error.type": "BURNT"})


def test_traces_that_begin_here_are_sampled_as_opentelemetrys_variables_say(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    tracer = open_tracer("kitchen", receiver.endpoint)

    root = tracer.start_trace("meal", NO_CONTEXT)
    tracer.start_trace("meal", CALLER).end()
    tracer.close()

    assert int(root.context.traceparent[-2:], 16) & 1 == 0, "its flag says that it is not sampled"
    assert len(receiver.wait(TRACE, has("meal"))) == 1


def test_what_is_left_is_sent_at_the_end(receiver):
    tracer = open_tracer("kitchen", receiver.endpoint)
    tracer.start_trace("meal", CALLER).end()

    tracer.close()

    assert [span.name for span in receiver.spans()] == ["meal"]


def test_a_collector_that_is_away_holds_up_an_end_for_half_a_second(tmp_path):
    tracer = open_tracer("kitchen", f"unix:{tmp_path}/nobody")
    tracer.start_trace("meal", CALLER).end()
    began = time.monotonic()

    tracer.close()

    assert time.monotonic() - began < 2


@pytest.mark.parametrize("endpoint", ["http://h:4317", "https://h:4317/", "grpc://h:4317", "h:4317", "unix:/run/otlp.sock"])
def test_an_endpoint_says_where_and_how(endpoint):
    assert ServiceSettings(otlp_endpoint=endpoint).otlp_endpoint == endpoint


def test_an_empty_endpoint_is_none():
    """Compose gives a variable that is not set to a service as an empty one."""
    assert ServiceSettings(otlp_endpoint="").otlp_endpoint is None


@pytest.mark.parametrize("endpoint", ["somewhere", "ftp://h:21", "http://h", "http://user@h:4317"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    with pytest.raises(ValueError, match="must be http://host:port"):
        ServiceSettings(otlp_endpoint=endpoint)
