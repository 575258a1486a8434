"""The metrics that a service exports: families by name, from its /metrics port."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
_SUMMARY = {"histogram": {"le"}}


@dataclass(frozen=True)
class Family:
    """Series of one name.

    Attributes:
        name: as queries write it, but for a histogram's _bucket, _sum and _count.
        series: the names that queries may read.
        labels: of its series; empty where there is none yet.
        totals: the sum over all labels, by the names of the series.
    """

    name: str
    kind: str
    text: str
    series: frozenset[str]
    labels: frozenset[str]
    totals: Mapping[str, float]

    def row(self) -> str:
        """Return the family as a row of the table in docs/operations.md."""
        labels = ", ".join(f"`{label}`" for label in sorted(self.labels - {"model_name"}))
        return f"| `{self.name}` | {self.kind} | {labels} | {self.text} |"


def scrape(port: int) -> dict[str, Family]:
    """Return what a /metrics port of this machine shows."""
    response = httpx.get(f"http://127.0.0.1:{port}/metrics")
    response.raise_for_status()
    families = {}
    for each in text_string_to_metric_families(response.text):
        name = f"{each.name}_total" if each.type == "counter" else each.name
        labels = {label for sample in each.samples for label in sample.labels} - _SUMMARY.get(each.type, set())
        series = frozenset(each.name + suffix for suffix in _SUFFIXES.get(each.type, ("",)))
        totals: Counter[str] = Counter()
        for sample in each.samples:
            totals[sample.name] += sample.value
        families[name] = Family(name, each.type, each.documentation, series, frozenset(labels), totals)
    return families
