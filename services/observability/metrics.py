"""Metrics: the common metrics of all processes, and the Prometheus endpoint for them and for the service's metrics.

Values are counted per request or per step, never per token; gauges are read at the scrape. Each service keeps its metrics in
its own registry, so that several services can run in one process.
"""

import contextlib
import platform
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tetrad.services.log import get_logger
from tetrad.services.tls.certificates import certificate_ends
from tetrad.services.version import SCHEMA_REVISION, VERSION

disable_created_metrics()  # type: ignore[no-untyped-call] # otherwise each counter has one more series, without use

PROCESS = CollectorRegistry()
"""The metrics of every process: memory and CPU time, version, and the calls of its gRPC server (call_metrics.py)."""
ProcessCollector(registry=PROCESS)
GCCollector(registry=PROCESS)

SECONDS_OF_A_STEP = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
"""Upper limits of the buckets for parts of a step, in seconds: from microseconds of bookkeeping to a prompt on a slow CPU."""
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
"""Upper limits of the buckets for numbers of tokens, as in vLLM."""
REQUESTS_OF_A_STEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_RETRY_S = 1.0
"""Seconds between two attempts to open a port that is in use."""
_SERVED = CollectorRegistry()
_BUILD = Gauge(
    "tetrad:build_info",
    "1; which release runs, of which service.",
    ["service", "version", "schema_revision", "python"],
    registry=PROCESS,
)

log = get_logger()


class _Shown:
    """Makes a registry a collector of another one. It declares no names: two services of one process have the same ones."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


_SERVED.register(_Shown(PROCESS))


class _Joined:
    """Combines registries with the same families: each family appears once, with the samples of all."""

    def __init__(self, registries: Callable[[], Iterable[CollectorRegistry]]) -> None:
        self._registries = registries

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for family in (family for registry in self._registries() for family in registry.collect()):
            known = families.setdefault(family.name, family)
            if known is not family:
                known.samples.extend(family.samples)
        return families.values()


def joined_registry(registries: Callable[[], Iterable[CollectorRegistry]]) -> CollectorRegistry:
    """Return a registry that exports the metrics of others, which `registries` returns at each scrape.

    Their series must differ in their labels.
    """
    joined = CollectorRegistry()
    joined.register(_Joined(registries))
    return joined


class _CertificateEnds:
    """Exports the expiry of the certificates of this process, which certificates.py has noted."""

    def collect(self) -> Iterable[Metric]:
        text = "Expiry of each certificate in use, in Unix time, by `file`. Absent without TLS."
        family = GaugeMetricFamily("tetrad:tls_certificate_expiry_timestamp_seconds", text, labels=["file"])
        # Names, not paths: everyone can read metrics. Of several files of one name the earliest expiry counts.
        first = {path.name: ends for path, ends in sorted(certificate_ends().items(), key=lambda item: -item[1])}
        for name, ends in first.items():
            family.add_metric([name], ends)
        yield family


PROCESS.register(_CertificateEnds())


@contextlib.contextmanager
def shown(registry: CollectorRegistry) -> Iterator[None]:
    """Export a service's metrics on the process's endpoint while the context is open."""
    collector = _Shown(registry)
    _SERVED.register(collector)
    try:
        yield
    finally:
        _SERVED.unregister(collector)


def render(registry: CollectorRegistry) -> bytes:
    """Return a service's metrics, and those of the process, in Prometheus' text format."""
    return bytes(generate_latest(registry) + generate_latest(PROCESS))


def note_build(service: str) -> None:
    """Export the name and release of this process's service."""
    _BUILD.labels(service, VERSION, str(SCHEMA_REVISION), platform.python_version()).set(1)


class _Handler(BaseHTTPRequestHandler):
    """Answers every GET with the metrics, always in the plain text format.

    Prometheus prefers OpenMetrics, but in that format prometheus_client does not write names with a colon as it declares them.
    """

    # Seconds after which a connection that sends or reads nothing is closed, so that its thread ends.
    timeout = 10

    def do_GET(self) -> None:
        body = generate_latest(_SERVED)
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing about scrapes."""


class _Server(ThreadingHTTPServer):
    """Serves the metrics at an address of IPv4 or IPv6."""

    timeout = 0.5  # seconds after which the thread checks whether the port is closed

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the library's signature
        """Log what a connection failed with, as one line; a client that has left is no failure."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("metrics.scrape_failed", exc_info=error)


def serve_metrics(host: str, port: int | None) -> Callable[[], None]:
    """Serve /metrics on `host`:`port` from a thread, and return the function that closes the port; None: do nothing.

    A port in use is logged and is not fatal: metrics must not end a service. It is tried again until it is free, since a
    frontend begins while the one before it still runs.
    """
    closed = threading.Event()
    if port is not None:
        try:
            server = _Server(host, port)
        except OSError as error:
            log.error("metrics.not_served", host=host, port=port, error=str(error))
            server = None
        threading.Thread(target=_serve, args=(host, port, server, closed), daemon=True, name="metrics").start()
    return closed.set


def _serve(host: str, port: int, server: _Server | None, closed: threading.Event) -> None:
    """Answer scrapes until the port is closed."""
    while server is None:
        if closed.wait(_RETRY_S):
            return
        with contextlib.suppress(OSError):
            server = _Server(host, port)
            log.info("metrics.served", host=host, port=port)
    with server:
        while not closed.is_set():
            server.handle_request()
