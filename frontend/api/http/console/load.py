"""Load: computes the values of the console's charts from this frontend's metrics and its engine cores.

Counters are sent unchanged: the page computes rates, so the server keeps no state between two snapshots. Counters of KV caches
are part of each engine core in the topology: a sum of them would fall with each engine core that does not answer.
"""

import math
from typing import Any

from prometheus_client import CollectorRegistry

from tetrad.frontend.engine.facts import EngineLoad

_GAUGES = {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv_cache_usage": "kv_cache_usage_perc"}
_COUNTERS = {
    "generation_tokens": "generation_tokens_total",
    "prompt_tokens": "prompt_tokens_total",
    "cache_queries": "prefix_cache_queries_total",
    "cache_hits": "prefix_cache_hits_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_HISTOGRAMS = {"first_token_s": "time_to_first_token_seconds", "per_token_s": "inter_token_latency_seconds"}


def load_of(registry: CollectorRegistry, prefix: str, engines: list[EngineLoad | None]) -> dict[str, Any]:
    """Return gauges, counters since start, and histograms of durations as [sum, count, [[bucket limit, count], ...]].

    Args:
        registry: the registry of the frontend's metrics.
        prefix: prefix of the metrics' names.
        engines: loads of the engine cores, with the requests of all frontends; None for one that did not answer.
    """
    samples: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {metric: {} for metric in _HISTOGRAMS.values()}
    for sample in (sample for family in registry.collect() for sample in family.samples):
        name = sample.name.removeprefix(f"{prefix}:")
        if (metric := name.removesuffix("_bucket")) in buckets:
            limit = float(sample.labels.get("le", "inf"))
            buckets[metric][limit] = buckets[metric].get(limit, 0.0) + sample.value
        # Each model has its own series.
        before = samples.get(name, 0.0)
        samples[name] = max(before, sample.value) if name == _GAUGES["kv_cache_usage"] else before + sample.value
    load: dict[str, Any] = {name: samples.get(metric, 0.0) for name, metric in (_GAUGES | _COUNTERS).items()}
    for name, metric in _HISTOGRAMS.items():
        # The last limit is infinite: its count is the total count, and JSON has no infinity.
        limited = [bucket for bucket in buckets[metric].items() if math.isfinite(bucket[0])]
        load[name] = [samples.get(f"{metric}_sum", 0.0), samples.get(f"{metric}_count", 0.0), limited]
    known = [engine for engine in engines if engine is not None]
    if known:
        load["running"] = sum(engine.scheduler.num_running for engine in known)
        load["waiting"] = sum(engine.scheduler.num_waiting for engine in known)
        load["kv_cache_usage"] = max(engine.scheduler.kv_cache_usage for engine in known)
    return load
