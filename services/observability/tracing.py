"""Tracing: spans of requests, one per phase and none per token, for an OpenTelemetry collector. Off by default.

When off, OpenTelemetry is not imported and a span is an object that does nothing; the caller's context is still passed on, so
that the logs of all services carry its ids. otlp.py sends spans to the collector.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from tetrad.services.errors import TetradError
from tetrad.services.request_context import NO_CONTEXT, RequestContext, bind_context, current_context

Attributes = Mapping[str, str | int | float | bool]
Kind = Literal["internal", "client", "server"]

_NOTHING: Attributes = {}


class Span(Protocol):
    """One phase of one request. It is exported when it ends; one that never ends is not exported."""

    @property
    def context(self) -> RequestContext:
        """The context for work below this span, in this service or another one."""

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""

    def add_event(self, name: str, attributes: Attributes = _NOTHING, *, at_ns: int | None = None) -> None:
        """Add an event, now or at a wall-clock time in nanoseconds."""

    def end(self, *, at_ns: int | None = None, error: str = "") -> None:
        """End the span, now or at a wall-clock time in nanoseconds; `error` is the reason if it failed."""


class Tracer(Protocol):
    """Makes the spans of one service."""

    @property
    def is_on(self) -> bool:
        """Whether spans are exported."""

    def start_trace(self, name: str, context: RequestContext, *, start_ns: int | None = None) -> Span:
        """Return the span of a client's call: below the caller's span, or the root of a new trace."""

    def start_span(
        self,
        name: str,
        context: RequestContext,
        *,
        kind: Kind = "internal",
        start_ns: int | None = None,
        attributes: Attributes = _NOTHING,
    ) -> Span:
        """Return a span below that of `context`, which begins now or at `start_ns`; without a trace the span does nothing."""

    def close(self) -> None:
        """Send the remaining spans; blocks for at most half a second."""


class NoSpan:
    """A span that does nothing and passes the context on.

    Args:
        context: the context of the caller.
    """

    __slots__ = ("context",)

    def __init__(self, context: RequestContext) -> None:
        self.context = context

    def set_attributes(self, attributes: Attributes) -> None:
        """Do nothing."""

    def add_event(self, name: str, attributes: Attributes = _NOTHING, *, at_ns: int | None = None) -> None:
        """Do nothing."""

    def end(self, *, at_ns: int | None = None, error: str = "") -> None:
        """Do nothing."""


NO_SPAN = NoSpan(NO_CONTEXT)


class NoTracer:
    """The tracer when tracing is off."""

    is_on = False

    def start_trace(self, name: str, context: RequestContext, *, start_ns: int | None = None) -> Span:  # noqa: ARG002 - as above
        """Return a span that does nothing."""
        return NoSpan(context)

    def start_span(
        self,
        name: str,  # noqa: ARG002 - the protocol's
        context: RequestContext,
        *,
        kind: Kind = "internal",  # noqa: ARG002 - likewise
        start_ns: int | None = None,  # noqa: ARG002 - likewise
        attributes: Attributes = _NOTHING,  # noqa: ARG002 - likewise
    ) -> Span:
        """Return a span that does nothing."""
        return NoSpan(context)

    def close(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def spanned(tracer: Tracer, name: str, *, kind: Kind = "internal", attributes: Attributes = _NOTHING) -> Iterator[Span]:
    """Run a span below the present context while this is open; it is the context of the work inside."""
    span = tracer.start_span(name, current_context(), kind=kind, attributes=attributes)
    try:
        with bind_context(span.context):
            yield span
    except BaseException as error:
        span.end(error=reason_of(error))
        raise
    span.end()


def reason_of(error: BaseException) -> str:
    """Return an error's reason, not its text, which may contain a client's words."""
    return error.reason if isinstance(error, TetradError) else type(error).__name__
