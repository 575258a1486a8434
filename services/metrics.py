"""Metrics: each service's own Prometheus endpoint on a port of its own. Counted per request or per step, never per token."""

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

from tetrad.services.log import get_logger

log = get_logger()


def serve_metrics(host: str, port: int | None, registry: CollectorRegistry = REGISTRY) -> None:
    """Serve /metrics on `host`:`port` from a thread that sleeps between scrapes; None: do nothing.

    A port that is taken is logged, not fatal: metrics must not take a service down.
    """
    if port is None:
        return
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        log.error("metrics.not_served", host=host, port=port, error=str(error))
