"""Request contexts: reading of headers, malformed values, and propagation."""

import pytest

from tetrad.services.request_context import NO_CONTEXT, RequestContext, bind_context, current_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_context_survives_its_way_as_headers():
    context = RequestContext("r-1", PARENT, "vendor=1")

    assert RequestContext.from_headers(context.headers()) == context
    assert context.trace_id == TRACE


@pytest.mark.parametrize("traceparent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-x"])
def test_a_traceparent_of_any_version_is_taken(traceparent):
    assert RequestContext.from_headers({"traceparent": traceparent}).traceparent == traceparent


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}\n",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
    ],
)
def test_a_traceparent_that_cannot_be_used_is_left_out_with_its_state(traceparent):
    headers = {"traceparent": traceparent, "tracestate": "vendor=1", "x-request-id": "r-1"}

    context = RequestContext.from_headers(headers)

    assert context in (RequestContext("r-1"), RequestContext("r-1", PARENT, "vendor=1"))
    assert context.traceparent == ("" if traceparent.strip() != PARENT else PARENT)


@pytest.mark.parametrize("headers", [{"x-request-id": "two words"}, {"x-request-id": "x" * 129}, {"tracestate": "a=1"}, {}])
def test_headers_without_anything_usable_are_no_context(headers):
    assert RequestContext.from_headers(headers) is NO_CONTEXT


def test_state_that_no_header_could_hold_is_left_out():
    context = RequestContext.from_headers({"traceparent": PARENT, "tracestate": "a=1\r\nx: y"})

    assert context == RequestContext("", PARENT)


def test_a_context_is_bound_for_as_long_as_it_is_open():
    with bind_context(RequestContext("outer")), bind_context(RequestContext("inner")):
        inside = current_context()

    assert (inside, current_context()) == (RequestContext("inner"), NO_CONTEXT)


def test_lines_name_the_clients_id_and_ours():
    assert RequestContext("r-1", PARENT).log_fields("cmpl-r-1") == {
        "request_id": "r-1", "trace_id": TRACE, "internal_id": "cmpl-r-1",
    }  # fmt: skip
    assert NO_CONTEXT.log_fields("cmpl-1") == {"request_id": "cmpl-1", "internal_id": "cmpl-1"}
