"""Scheduler metrics: exports sums over the schedulers of all engine cores, with the names of vLLM's dashboards.

A step stores its engine core's numbers at almost no cost; a scrape computes the sums. A restarted engine core counts from zero;
the sums here continue. An engine core that discovery loses and finds again has another number, but the same epoch: its counts
continue. Each engine core exports more metrics on its own port.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.request.steps import SchedulerFacts

_COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens found in the prefix cache."),
    "mm_cache_queries": ("mm_cache_queries", "Images looked up in the encoder cache."),
    "mm_cache_hits": ("mm_cache_hits", "Images found in the encoder cache."),
    "num_preemptions": ("num_preemptions", "Requests preempted."),
    "spec_decode_num_drafts": ("num_drafts", "Drafts proposed."),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Tokens proposed."),
    "spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Proposed tokens accepted."),
}
"""Name of the metric -> field of SchedulerFacts, and the metric's description."""
_MOST_NAMED = 32
"""Maximum number of adapters in a label; a scrape has one such series for all adapters."""
_COUNTED = tuple(field for field, _ in _COUNTERS.values())


class SchedulerMetrics:
    """The collector of the sums.

    Args:
        prefix: prefix of the metrics' names.
        model_name: label of every series.
    """

    def __init__(self, prefix: str, model_name: str) -> None:
        self._prefix, self._model_name = prefix, model_name
        self._latest: dict[int, SchedulerFacts] = {}
        self._epochs: dict[int, int] = {}  # number -> epoch of the engine core's latest process
        self._removed: dict[int, SchedulerFacts] = {}  # epoch -> last facts of a removed engine core
        self._before = dict.fromkeys(_COUNTED, 0)  # sums of processes that have ended, as far as is known
        self._by_place_before: tuple[int, ...] = ()
        self._engines: Mapping[int, EngineInfo] = {}
        self._known: frozenset[int] = frozenset()

    def note(self, engine_index: int, facts: SchedulerFacts) -> None:
        """Store the facts of an engine core's latest step; those of a removed engine core are ignored."""
        if engine_index not in self._known:
            return
        last = self._latest.get(engine_index)
        if last is not None and any(getattr(facts, name) < getattr(last, name) for name in _COUNTED):
            self._keep_counts(last)
        self._latest[engine_index] = facts

    def note_engines(self, connected: Mapping[int, EngineInfo], known: Collection[int]) -> None:
        """Set which engine cores there are, by their numbers.

        Args:
            connected: the connected engine cores; all others have no running requests.
            known: the engine cores that are connected or may return; all others are removed, and their counts are kept.
        """
        self._engines, self._known = connected, frozenset(known)
        for number in (self._latest.keys() | self._epochs.keys()) - self._known:
            self._remove(number)
        for number, info in connected.items():
            if self._epochs.get(number) != info.epoch:
                self._begin(number, info.epoch)
        for number, facts in self._latest.items():
            if number not in connected:
                _clear(facts)

    def _remove(self, number: int) -> None:
        facts, epoch = self._latest.pop(number, None), self._epochs.pop(number, None)
        if facts is None:
            return
        if epoch is None:
            self._keep_counts(facts)
        else:
            _clear(facts)
            self._removed[epoch] = facts

    def _begin(self, number: int, epoch: int) -> None:
        """Note the first session with a process, or the first one since discovery has found it again."""
        if number in self._epochs and (facts := self._latest.pop(number, None)) is not None:
            self._keep_counts(facts)
        self._epochs[number] = epoch
        if (facts := self._removed.pop(epoch, None)) is not None:
            self._latest[number] = facts

    def _keep_counts(self, facts: SchedulerFacts) -> None:
        for name in _COUNTED:
            self._before[name] += getattr(facts, name)
        self._by_place_before = _sums(self._by_place_before, facts.num_accepted_by_place)

    def note_idle(self) -> None:
        """Set the numbers of requests to zero: this frontend has none, so no further step reports it."""
        for facts in self._latest.values():
            facts.num_running = facts.num_waiting = 0
            facts.running_loras = facts.waiting_loras = ()

    def collect(self) -> Iterator[Metric]:
        """Yield the sums over all engine cores; for KV usage the maximum."""
        latest = [*self._latest.values(), *self._removed.values()]
        yield self._gauge("num_requests_running", "Requests in the running batch.", sum(each.num_running for each in latest))
        yield self._gauge("num_requests_waiting", "Requests waiting to be scheduled.", sum(each.num_waiting for each in latest))
        usage = max((each.kv_cache_usage for each in latest), default=0.0)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
        for name, (field, text) in _COUNTERS.items():
            family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name"])
            family.add_metric([self._model_name], self._before[field] + sum(getattr(each, field) for each in latest))
            yield family
        yield self._accepted_by_place(latest)
        yield self._loras(latest)
        yield self._cache_config()

    def _accepted_by_place(self, latest: list[SchedulerFacts]) -> CounterMetricFamily:
        text = "Proposed tokens accepted, by place in their draft."
        family = CounterMetricFamily(
            f"{self._prefix}:spec_decode_num_accepted_tokens_per_pos", text, labels=["model_name", "position"]
        )
        counts = self._by_place_before
        for facts in latest:
            counts = _sums(counts, facts.num_accepted_by_place)
        for place, count in enumerate(counts):
            family.add_metric([self._model_name, str(place)], count)
        return family

    def _loras(self, latest: list[SchedulerFacts]) -> GaugeMetricFamily:
        labels = ["model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        text = "Unix time; the LoRA adapters that requests run with, and that they wait for, the first 32 by name."
        family = GaugeMetricFamily(f"{self._prefix}:lora_requests_info", text, labels=labels)
        most = max((info.max_loras for info in self._engines.values()), default=0)
        names = (_named(each.running_loras for each in latest), _named(each.waiting_loras for each in latest))
        family.add_metric([self._model_name, str(most), *names], time.time())
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _cache_config(self) -> GaugeMetricFamily:
        labels = ["model_name", "engine", "block_size", "num_gpu_blocks", "cache_dtype"]
        family = GaugeMetricFamily(f"{self._prefix}:cache_config_info", "1; the KV cache of an engine core.", labels=labels)
        for number, info in self._engines.items():
            values = (number, info.block_size, info.num_gpu_blocks, info.kv_cache_dtype or info.dtype)
            family.add_metric([self._model_name, *map(str, values)], 1)
        return family


def _clear(facts: SchedulerFacts) -> None:
    """Set everything but counters to zero: the engine core is not connected."""
    facts.num_running = facts.num_waiting = 0
    facts.kv_cache_usage = 0.0
    facts.running_loras = facts.waiting_loras = ()


def _named(groups: Iterable[tuple[str, ...]]) -> str:
    return ",".join(sorted({name for group in groups for name in group})[:_MOST_NAMED])


def _sums(counts: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(counts, more, fillvalue=0)))
