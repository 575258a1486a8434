"""Metrics reader: converts a Prometheus registry to one object per series, with vLLM's class names. For LLM.get_metrics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family

_POSITION = "position"


@dataclass
class Metric:
    """One series: its name, with the prefix, and its labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only increases."""

    value: int


@dataclass
class Vector(Metric):
    """The values of a counter with the label "position", one per position."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number that increases and decreases."""

    value: float


@dataclass
class Histogram(Metric):
    """Numbers of observations in buckets.

    Attributes:
        count: number of observations.
        sum: sum of the observed values.
        buckets: upper limit -> number of observations up to it; "+Inf" has all.
    """

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(registry: CollectorRegistry) -> list[Metric]:
    """Return the present values of Tetrad's series: those with a prefix in their names, as in "tetrad:num_preemptions"."""
    read: dict[str, Callable[[Family], Iterator[Metric]]] = {"counter": _counters, "gauge": _gauges, "histogram": _histograms}
    return [
        metric
        for family in registry.collect()
        if ":" in family.name and family.type in read
        for metric in read[family.type](family)
    ]


def _gauges(family: Family) -> Iterator[Metric]:
    for sample in family.samples:
        yield Gauge(family.name, dict(sample.labels), sample.value)


def _counters(family: Family) -> Iterator[Metric]:
    vectors: dict[tuple[tuple[str, str], ...], dict[int, int]] = {}
    for sample in family.samples:
        if sample.name != f"{family.name}_total":
            continue
        labels = dict(sample.labels)
        position = labels.pop(_POSITION, None)
        if position is None:
            yield Counter(family.name, labels, int(sample.value))
        else:
            vectors.setdefault(tuple(sorted(labels.items())), {})[int(position)] = int(sample.value)
    for key, values in vectors.items():
        yield Vector(family.name, dict(key), [values.get(place, 0) for place in range(max(values) + 1)])


def _histograms(family: Family) -> Iterator[Metric]:
    found: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        limit = labels.pop("le", "")
        key = tuple(sorted(labels.items()))
        histogram = found.setdefault(key, Histogram(family.name, labels, 0, 0.0, {}))
        match sample.name.removeprefix(family.name):
            case "_bucket":
                histogram.buckets[limit] = int(sample.value)
            case "_count":
                histogram.count = int(sample.value)
            case "_sum":
                histogram.sum = sample.value
    yield from found.values()
