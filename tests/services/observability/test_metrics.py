"""Histograms, calls counted by method and status, and the metrics endpoint of a service."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
import urllib.request

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Gauge as PromGauge
from structlog.testing import capture_logs

from tetrad.services.errors import NotFound, TetradError
from tetrad.services.observability import metrics
from tetrad.services.observability.histogram import Histogram
from tetrad.services.observability.metrics import PROCESS, render, serve_metrics, shown


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def test_a_histogram_counts_each_value_in_every_bucket_that_holds_it():
    registry = CollectorRegistry()
    histogram = Histogram("tetrad:x_seconds", "X.", (0.1, 1.0), registry=registry, labels={"model_name": "m"})

    for value in (0.1, 0.5, 7.0):
        histogram.observe(value)

    counts = [sample(registry, "tetrad:x_seconds_bucket", model_name="m", le=le) for le in ("0.1", "1.0", "+Inf")]
    assert counts == [1, 2, 3]
    assert sample(registry, "tetrad:x_seconds_count", model_name="m") == 3
    assert sample(registry, "tetrad:x_seconds_sum", model_name="m") == pytest.approx(7.6)


def test_equal_observations_can_be_counted_at_once():
    registry = CollectorRegistry()
    histogram = Histogram("tetrad:x_seconds", "X.", (0.1, 1.0), registry=registry)

    histogram.observe(0.5, 32)

    assert sample(registry, "tetrad:x_seconds_count") == 32
    assert sample(registry, "tetrad:x_seconds_sum") == 16


def test_a_second_histogram_of_one_name_is_refused():
    registry = CollectorRegistry()
    Histogram("tetrad:x_seconds", "X.", (0.1,), registry=registry)

    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("tetrad:x_seconds", "X.", (0.1,), registry=registry)


def test_a_service_s_metrics_are_on_the_endpoint_while_it_serves():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve_metrics("127.0.0.1", port)
    registry = CollectorRegistry()
    PromGauge("tetrad:of_a_service", "X.", registry=registry).set(5)

    def scrape() -> str:
        """As Prometheus does, which would rather have another format; in that one names would be others."""
        wanted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"accept": wanted})
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode()

    with shown(registry):
        during = scrape()
    after = scrape()

    assert "tetrad:of_a_service 5.0" in during
    assert "process_resident_memory_bytes" in during
    assert "tetrad:of_a_service" not in after


def test_the_endpoint_may_be_at_an_address_of_ipv6():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = probe.getsockname()[1]

    serve_metrics("::1", port)

    with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=5) as answer:
        assert b"process_resident_memory_bytes" in answer.read()


def test_a_successor_serves_the_port_when_the_process_before_it_leaves_it(monkeypatch):
    """A rolling restart starts a frontend beside the one before it."""
    monkeypatch.setattr(metrics, "_RETRY_S", 0.01)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    leave = serve_metrics("127.0.0.1", port)

    with capture_logs() as logs:
        serve_metrics("127.0.0.1", port)
        leave()
        deadline = time.monotonic() + 10
        while len(logs) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    assert [line["event"] for line in logs] == ["metrics.not_served", "metrics.served"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert b"process_resident_memory_bytes" in answer.read()


class Broken:
    """A collector that fails once it is asked."""

    def describe(self):
        return ()

    def collect(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_a_scrape_that_fails_is_one_line_of_the_log(capfd):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve_metrics("127.0.0.1", port)
    registry = CollectorRegistry()
    registry.register(Broken())

    with capture_logs() as logs, shown(registry), pytest.raises(OSError, match="closed connection"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)

    assert [line["event"] for line in logs] == ["metrics.scrape_failed"]
    assert capfd.readouterr().err == ""


def test_a_client_that_resets_its_connection_is_no_failure(capfd):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve_metrics("127.0.0.1", port)

    with capture_logs() as logs:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).close()  # taken after the one before
        for thread in [each for each in threading.enumerate() if "process_request_thread" in each.name]:
            thread.join()

    assert logs == []
    assert capfd.readouterr().err == ""


def test_rendered_metrics_have_the_process_s_behind_the_service_s():
    registry = CollectorRegistry()
    PromGauge("tetrad:of_a_service", "X.", registry=registry).set(5)

    text = render(registry)

    assert text.startswith(generate_latest(registry))
    assert b"process_resident_memory_bytes" in text


CALLS = {"grpc_service": "test.Echo", "grpc_method": "Unary", "grpc_type": "unary"}
STREAMS = {"grpc_service": "test.Echo", "grpc_method": "Stream", "grpc_type": "server_stream"}
BOTH_WAYS = {"grpc_service": "test.Echo", "grpc_method": "Both", "grpc_type": "bidi_stream"}


def handled(labels: dict[str, str]) -> dict[str, float]:
    """Return status -> calls that ended with it."""
    return {
        each.labels["grpc_code"]: each.value
        for family in PROCESS.collect()
        for each in family.samples
        if each.name == "grpc_server_handled_total" and labels.items() <= each.labels.items()
    }


async def grown(labels: dict[str, str], before: dict[str, float], number: int) -> dict[str, float]:
    """Return what has come to `before`, once it is `number` calls: a caller may have its error before the call is over."""
    async with asyncio.timeout(5):
        while sum(handled(labels).values()) < sum(before.values()) + number:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    return {code: calls - before.get(code, 0) for code, calls in handled(labels).items() if calls != before.get(code, 0)}


@pytest.mark.parametrize(
    ("error", "code"), [(None, "OK"), (NotFound("no"), "NOT_FOUND"), (ValueError("bug"), "INTERNAL")], ids=["ok", "ours", "bug"]
)
async def test_a_call_is_counted_with_what_its_caller_gets(serve, error, code):
    async def behavior(request: bytes) -> bytes:
        if error is not None:
            raise error
        return request

    client, _ = await serve(behavior)
    before, started = handled(CALLS), sample(PROCESS, "grpc_server_started_total", **CALLS)
    seconds = sample(PROCESS, "grpc_server_handling_seconds_count", **CALLS)

    for _ in range(2):
        with contextlib.suppress(TetradError):
            await client.unary(b"x")

    assert await grown(CALLS, before, 2) == {code: 2}
    assert sample(PROCESS, "grpc_server_started_total", **CALLS) == started + 2
    assert sample(PROCESS, "grpc_server_handling_seconds_count", **CALLS) == seconds + 2


async def test_a_call_whose_time_is_over_is_no_cancelled_one(serve):
    began = asyncio.Event()

    async def behavior(request: bytes) -> bytes:
        began.set()
        return await asyncio.get_running_loop().create_future()

    client, _ = await serve(behavior)
    before = handled(CALLS)

    with contextlib.suppress(TetradError):
        await client.unary(timeout_s=0.2)
    began.clear()
    given_up = asyncio.create_task(client.unary(timeout_s=60))
    await began.wait()
    given_up.cancel()

    assert await grown(CALLS, before, 2) == {"DEADLINE_EXCEEDED": 1, "CANCELLED": 1}


async def test_a_stream_is_counted_once_with_the_status_that_ends_it(serve):
    async def behavior(request: bytes) -> bytes:
        if request == b"bad":
            raise NotFound("no")
        return request

    client, _ = await serve(behavior)
    before = handled(STREAMS)

    await client.stream(b"good")
    await client.stream(b"bad")

    assert await grown(STREAMS, before, 2) == {"OK": 1, "NOT_FOUND": 1}


@pytest.mark.parametrize(("is_cut", "code"), [(False, "OK"), (True, "CANCELLED")], ids=["ended", "cut"])
async def test_a_stream_both_ways_that_its_caller_cuts_is_a_cancelled_one(serve, is_cut, code):
    async def behavior(request: bytes) -> bytes:
        return request

    client, _ = await serve(behavior)
    before = handled(BOTH_WAYS)

    calls = [client.channel.stream_stream("/test.Echo/Both")() for _ in range(20)]
    for call in calls:
        await call.write(b"x")
        assert await call.read() == b"x"
        if is_cut:
            call.cancel()
        else:
            await call.done_writing()

    assert await grown(BOTH_WAYS, before, len(calls)) == {code: len(calls)}


async def test_a_stream_both_ways_that_its_server_ends_waits_for_no_more_messages(serve):
    client, _ = await serve(None)
    before = handled(BOTH_WAYS)

    call = client.channel.stream_stream("/test.Echo/Both")(timeout=5)
    await call.write(b"enough")

    assert await call.code() is grpc.StatusCode.OK
    assert await grown(BOTH_WAYS, before, 1) == {"OK": 1}
