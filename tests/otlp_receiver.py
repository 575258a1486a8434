"""An OpenTelemetry collector in memory: a real gRPC server that keeps received spans."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

ERROR = 2
"""Status of a span that failed."""
TIMEOUT_S = 20


@dataclass(frozen=True)
class Span:
    """A span as it was received. Times in seconds of the wall clock."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    kind: int
    status: int
    reason: str
    attributes: dict[str, Any] = field(repr=False)
    events: list[str] = field(default_factory=list)

    @property
    def duration(self) -> float:
        return self.end - self.start


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """The collector; a context manager. `endpoint` is where it listens."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "OtlpReceiver":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def Export(self, request, context):
        spans = [
            _span(resource.resource, span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[Span]:
        """Return all that were received, in the order of their beginnings."""
        with self._changed:
            return sorted(self._spans, key=lambda span: (span.start, -span.end))

    def wait(self, trace_id: str, is_complete: Callable[[list[Span]], bool]) -> list[Span]:
        """Return a trace's spans once they are complete; AssertionError if that takes too long."""

        def found() -> list[Span]:
            return [span for span in self.spans() if span.trace_id == trace_id]

        with self._changed:
            assert self._changed.wait_for(lambda: is_complete(found()), TIMEOUT_S), f"after {TIMEOUT_S} s only: {found()}"
        return found()

    def wait_for(self, is_wanted: Callable[[Span], bool]) -> Span:
        """Return the first span that is wanted; AssertionError if none comes."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(is_wanted, self.spans())), TIMEOUT_S), "it did not come"
        return next(filter(is_wanted, self.spans()))


def has(*names: str) -> Callable[[list[Span]], bool]:
    """Return whether spans have all these names, as often as they are given."""
    return lambda spans: all([span.name for span in spans].count(name) >= names.count(name) for name in names)


def _span(resource: Any, span: Any) -> Span:
    return Span(
        service=_values(resource.attributes)["service.name"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        kind=span.kind,
        status=span.status.code,
        reason=span.status.message,
        attributes=_values(span.attributes),
        events=[event.name for event in span.events],
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
