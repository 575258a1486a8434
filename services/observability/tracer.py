"""Opens the tracer of a service: one that exports spans, or one that does nothing."""

from tetrad.services.observability.tracing import NoTracer, Tracer


def open_tracer(service: str, endpoint: str | None) -> Tracer:
    """Return the tracer that makes a service's spans.

    Args:
        service: its name ("worker").
        endpoint: of the collector, see `ServiceSettings.otlp_endpoint`; None: tracing is off.
    """
    if endpoint is None:
        return NoTracer()
    from tetrad.services.observability.otlp import OtlpTracer  # OpenTelemetry takes long to import

    return OtlpTracer(service, endpoint)
