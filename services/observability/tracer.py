"""Opens the tracer of a service: one that exports spans, or one that does nothing."""

from tetrad.services.observability.tracing import NoTracer, Tracer


def open_tracer(service: str, endpoint: str | None) -> Tracer:
    """Return the tracer for a service.

    Args:
        service: name of the service ("worker").
        endpoint: address of the collector, see `ServiceSettings.otlp_endpoint`; None: tracing is off.
    """
    if endpoint is None:
        return NoTracer()
    from tetrad.services.observability.otlp import OtlpTracer  # OpenTelemetry takes long to import

    return OtlpTracer(service, endpoint)
