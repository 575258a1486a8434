"""Metrics as objects: one per series, with vLLM's classes."""

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Counter as PromCounter
from prometheus_client import Gauge as PromGauge
from prometheus_client import Histogram as PromHistogram
from prometheus_client import Info as PromInfo

from tetrad.library.metrics_reader import Counter, Gauge, Histogram, Vector, snapshot


def test_each_series_is_an_object_of_its_kind():
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PromInfo("t:build", "-", registry=registry).info({"version": "1"})
    PromGauge("t:running", "-", ["model"], registry=registry).labels("m").set(1.5)
    ended = PromCounter("t:ended", "-", ["reason"], registry=registry)
    ended.labels("stop").inc(3)
    ended.labels("length").inc()
    accepted = PromCounter("t:accepted", "-", ["model", "position"], registry=registry)
    for position, number in (("0", 10), ("2", 2)):
        accepted.labels("m", position).inc(number)
    latency = PromHistogram("t:latency", "-", buckets=(1, 2), registry=registry)
    for value in (0.5, 1.5, 9):
        latency.observe(value)

    assert snapshot(registry) == [
        Gauge("t:running", {"model": "m"}, 1.5),
        Counter("t:ended", {"reason": "stop"}, 3),
        Counter("t:ended", {"reason": "length"}, 1),
        Vector("t:accepted", {"model": "m"}, [10, 0, 2]),
        Histogram("t:latency", {}, 3, 11.0, {"1.0": 1, "2.0": 2, "+Inf": 3}),
    ]
