"""Series: creates the metrics of one registry, with the prefix and the label that all of them have.

Used by FrontendMetrics and StepMetrics when they are created. The names and the bucket limits are vLLM's.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client import Histogram as LabelledHistogram

from tetrad.services.observability.histogram import Histogram

# vLLM's bucket limits, and smaller ones for faster devices.
PER_TOKEN = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
"""Upper limits of the buckets for the time between two tokens, in seconds."""
LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
"""Upper limits of the buckets for a request and its phases, in seconds."""


class Series:
    """The metrics of one registry.

    Args:
        prefix: prefix of the metrics' names.
        model_name: label of every series.
    """

    def __init__(self, prefix: str, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix, self._model_name = prefix, model_name

    def gauge(self, name: str, text: str) -> Gauge:
        """Return a new gauge with one series."""
        return Gauge(self._full(name), text, ["model_name"], registry=self.registry).labels(self._model_name)

    def counter(self, name: str, text: str) -> Counter:
        """Return a new counter with one series."""
        return self.counters(name, text).labels(self._model_name)

    def counters(self, name: str, text: str, *labels: str) -> Counter:
        """Return a new counter with a series for each value of the labels; the first label is the model's name."""
        return Counter(self._full(name), text, ["model_name", *labels], registry=self.registry)

    def histogram(self, name: str, text: str, limits: Sequence[float]) -> Histogram:
        """Return a new histogram with one series; `limits` are the upper limits of its buckets."""
        return Histogram(self._full(name), text, limits, registry=self.registry, labels={"model_name": self._model_name})

    def latencies(self, name: str, text: str, *labels: str) -> LabelledHistogram:
        """Return a new histogram of seconds with a series for each value of the labels; the first is the model's name."""
        names = ["model_name", *labels]
        return LabelledHistogram(self._full(name), text, names, buckets=LATENCY, registry=self.registry)

    def _full(self, name: str) -> str:
        return f"{self._prefix}:{name}"
