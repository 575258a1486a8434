"""OTLP: the Tracer that sends spans to an OpenTelemetry collector, in batches, from its own thread.

Imported only if tracing is on. Sampling follows the caller's flag, and OpenTelemetry's own variables (OTEL_TRACES_SAMPLER and
others) for traces that begin here; by default all are sampled. If the collector is lost, spans are lost but never requests.
"""

import threading
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as LibrarySpan
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tetrad.services.observability.tracing import Attributes, Kind, NoSpan, Span
from tetrad.services.request_context import TRACEPARENT, TRACESTATE, RequestContext
from tetrad.services.version import VERSION

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
_SEND_EVERY_MS = 1000
_MAX_UNSENT_SPANS = 16384
_CLOSE_TIMEOUT_S = 0.5
_ROOT = Context()
_W3C = TraceContextTextMapPropagator()


class OtlpTracer:
    """Makes spans and exports them; see Tracer.

    Args:
        service: name of the service; `service.name` is tetrad-SERVICE.
        endpoint: http://host:port, https://host:port, host:port (no TLS) or unix:/path.
    """

    is_on = True

    def __init__(self, service: str, endpoint: str) -> None:
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=None if endpoint.startswith("https:") else True)
        resource = Resource.create({"service.name": f"tetrad-{service}", "service.version": VERSION})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_MAX_UNSENT_SPANS, schedule_delay_millis=_SEND_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("tetrad", VERSION)

    def start_trace(self, name: str, context: RequestContext, *, start_ns: int | None = None) -> Span:
        """Return the span of a client's call."""
        return self._start(name, context, SpanKind.SERVER, start_ns, {})

    def start_span(
        self,
        name: str,
        context: RequestContext,
        *,
        kind: Kind = "internal",
        start_ns: int | None = None,
        attributes: Attributes | None = None,
    ) -> Span:
        """Return a span below that of `context`."""
        if not context.traceparent:
            return NoSpan(context)
        return self._start(name, context, _KINDS[kind], start_ns, attributes or {})

    def close(self) -> None:
        """Send the remaining spans; those that the collector does not accept within half a second are lost."""
        # The library would wait for 30 s, and has no option to change that.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="otlp close")
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)

    def _start(self, name: str, context: RequestContext, kind: SpanKind, start_ns: int | None, attributes: Attributes) -> Span:
        # A copy, since the library's type of attributes is wider and not covariant.
        found: dict[str, Any] = dict(attributes)
        span = self._tracer.start_span(name, _parent_of(context), kind, found, start_time=start_ns)
        if not span.is_recording():
            return NoSpan(_context_of(span, context.request_id))
        return OtlpSpan(span, context.request_id)


class OtlpSpan:
    """A span that is exported; see Span.

    Args:
        span: the library's span.
        request_id: id of its request.
    """

    __slots__ = ("_request_id", "_span")

    def __init__(self, span: Any, request_id: str) -> None:
        self._span = span
        self._request_id = request_id

    @property
    def context(self) -> RequestContext:
        """The context for work below this span."""
        return _context_of(self._span, self._request_id)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def add_event(self, name: str, attributes: Attributes | None = None, *, at_ns: int | None = None) -> None:
        """Add an event."""
        self._span.add_event(name, attributes, at_ns)

    def end(self, *, at_ns: int | None = None, error: str = "") -> None:
        """End the span."""
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
            self._span.set_attribute("error.type", error)
        self._span.end(at_ns)


def _parent_of(context: RequestContext) -> Context:
    return _W3C.extract(context.headers(), _ROOT)


def _context_of(span: LibrarySpan, request_id: str) -> RequestContext:
    headers: dict[str, str] = {}
    _W3C.inject(headers, set_span_in_context(span, _ROOT))
    return RequestContext(request_id, headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, ""))
