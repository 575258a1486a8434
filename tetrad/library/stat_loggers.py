"""Stat loggers: log an engine's load every ten seconds, and when a program requests it.

The numbers are those of the frontend's metrics. A program's own loggers are made as in vLLM, from (VllmConfig, engine index).
`record` is called once before each `log`, with the statistics since the last call.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.config import VllmConfig
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.library.metrics_reader import Counter, Gauge, snapshot
from tetrad.services.log import get_report_logger

log = get_report_logger()

_INTERVAL_S = 10.0


@dataclass(frozen=True)
class PrefixCacheStats:
    """The numbers of tokens that were looked up and found in the prefix cache."""

    queries: int = 0
    hits: int = 0


@dataclass(frozen=True)
class SchedulerStats:
    """The sums over all engine cores. `kv_cache_usage`: the largest share of KV blocks in use, 0 to 1."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)


@dataclass(frozen=True)
class IterationStats:
    """Counts of an interval: prompt tokens of requests with their first token, generated tokens, preempted requests."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preempted_reqs: int = 0


class StatLoggerBase(ABC):
    """The base of a program's own loggers; a subclass is also their factory."""

    @abstractmethod
    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Store the statistics since the last call."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Log that the engine is ready."""

    def log(self) -> None:  # noqa: B027 - a logger may have nothing to write
        """Write the statistics recorded since the last call."""


StatLoggerFactory = Callable[[VllmConfig, int], StatLoggerBase]


class LoggingStatLogger(StatLoggerBase):
    """Writes a line with throughput, KV usage and hit rate; no line while the engine is idle.

    Args:
        vllm_config: unused.
        engine_index: index of the engine in the line.
        write: writes an event with its fields.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        vllm_config: VllmConfig | None = None,
        engine_index: int = 0,
        *,
        write: Callable[..., Any] = log.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        del vllm_config
        self._engine_index, self._write, self._clock = engine_index, write, clock
        self._scheduler = SchedulerStats()
        self._done: list[IterationStats] = []
        self._queries = self._hits = 0
        self._was_idle = True
        self._since = clock()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Add statistics for the next line."""
        del mm_cache_stats, engine_idx
        if scheduler_stats is not None:
            self._scheduler = scheduler_stats
            self._queries += scheduler_stats.prefix_cache_stats.queries
            self._hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self._done.append(iteration_stats)

    def log_engine_initialized(self) -> None:
        """Do nothing: a program knows that its engine has started."""

    def log(self) -> None:
        """Write the line; while the engine is idle, only the first time."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        prompt = sum(each.num_prompt_tokens for each in self._done)
        generated = sum(each.num_generation_tokens for each in self._done)
        idle = not (prompt or generated or self._scheduler.num_running_reqs or self._scheduler.num_waiting_reqs)
        if not (idle and self._was_idle):
            self._write(
                "engine.stats",
                engine=self._engine_index,
                prompt_tokens_per_s=round(prompt / seconds, 1),
                generation_tokens_per_s=round(generated / seconds, 1),
                running=self._scheduler.num_running_reqs,
                waiting=self._scheduler.num_waiting_reqs,
                kv_cache_usage_percent=round(100 * self._scheduler.kv_cache_usage, 1),
                prefix_cache_hit_rate_percent=round(100 * self._hits / self._queries, 1) if self._queries else 0.0,
            )
        self._was_idle, self._since, self._done = idle, now, []


class StatReporter:
    """Reports a frontend's metrics to stat loggers, on the frontend's event loop.

    Args:
        frontend: the frontend whose metrics are reported.
        loggers: the receivers of the statistics.
    """

    def __init__(self, frontend: AsyncLLM, loggers: Sequence[StatLoggerBase]) -> None:
        self._frontend, self._loggers = frontend, loggers
        self._before: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        for each in loggers:
            each.log_engine_initialized()

    def start(self) -> None:
        """Report every ten seconds from now on."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop the periodic reports."""
        if self._task is not None:
            self._task.cancel()

    def report(self) -> None:
        """Pass the statistics since the last report to every logger, and let it write."""
        counters, gauges = self._read()
        since = {name: value - self._before.get(name, 0) for name, value in counters.items()}
        self._before = counters
        for each in self._loggers:
            each.record(*_stats(since, gauges))
            each.log()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.report()

    def _read(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the counters and the gauges by name, without prefix."""
        counters: dict[str, float] = {}
        gauges: dict[str, float] = {}
        for metric in snapshot(self._frontend.metrics.registry):
            name = metric.name.partition(":")[2]
            if isinstance(metric, Counter):
                counters[name] = counters.get(name, 0) + metric.value
            elif isinstance(metric, Gauge):
                gauges[name] = metric.value
        return counters, gauges


def _stats(since: dict[str, float], now: dict[str, float]) -> tuple[SchedulerStats, IterationStats]:
    def count(name: str) -> int:
        return int(since.get(name, 0))

    scheduler = SchedulerStats(
        num_running_reqs=int(now.get("num_requests_running", 0)),
        num_waiting_reqs=int(now.get("num_requests_waiting", 0)),
        kv_cache_usage=now.get("kv_cache_usage_perc", 0.0),
        prefix_cache_stats=PrefixCacheStats(count("prefix_cache_queries"), count("prefix_cache_hits")),
    )
    return scheduler, IterationStats(count("prompt_tokens"), count("generation_tokens"), count("num_preemptions"))


def reporter_of(
    frontend: AsyncLLM, config: VllmConfig, factories: Sequence[StatLoggerFactory] | None, *, log_stats: bool
) -> StatReporter:
    """Make the reporter of an engine.

    Args:
        frontend: the frontend of the engine.
        config: configuration of the engine, for a program's loggers.
        factories: factories of a program's loggers.
        log_stats: whether to report every ten seconds; otherwise only on a call of `report`.
    """
    loggers = [make(config, 0) for make in factories or ()]
    if not any(isinstance(each, LoggingStatLogger) for each in loggers):
        loggers.insert(0, LoggingStatLogger(config))
    reporter = StatReporter(frontend, loggers)
    if log_stats:
        reporter.start()
    return reporter
