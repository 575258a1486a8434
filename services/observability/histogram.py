"""Histogram: counts observations in buckets, at a cost that is acceptable in every step.

The histogram of prometheus_client takes a lock and a loop over the buckets for each observation; this one bisects, and counts
many equal observations at once. One thread writes it; scrapes read it on another thread and may miss the current observation.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Histogram:
    """A histogram with one series.

    Args:
        name: its name, with prefix and unit.
        text: description of the observed value, for people.
        limits: upper limits of the buckets, ascending; larger values are counted, too.
        labels: its labels, the same for all observations.
        registry: registry that exports it.
    """

    def __init__(
        self,
        name: str,
        text: str,
        limits: Sequence[float],
        *,
        registry: CollectorRegistry,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._text, self._limits, self._labels = name, text, tuple(limits), dict(labels or {})
        self._counts = [0] * (len(limits) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` times."""
        self._counts[bisect_left(self._limits, value)] += times
        self._sum += value * times

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the name, so that the registry refuses a second histogram of the same name."""
        yield HistogramMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the counted values."""
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        bounds = [*map(floatToGoString, self._limits), "+Inf"]
        counts = zip(bounds, map(float, accumulate(self._counts)), strict=True)
        family.add_metric(list(self._labels.values()), buckets=list(counts), sum_value=self._sum)
        yield family
