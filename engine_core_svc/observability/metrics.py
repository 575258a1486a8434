"""EngineMetrics: Prometheus metrics of an engine core: times per step, counts per request, the scheduler's state per scrape.

Called by the engine, on the event loop. A step is planned (schedule), sent to the worker and answered (round trip), and applied
(update); the time of a step is the time between two results of a worker that always has work.
"""

import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tetrad.engine_core_svc.core.plan import FINISH_REASONS, SchedulerOutput, TransferEvents
from tetrad.engine_core_svc.kv_cache.block_samples import BlockObservers
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.services.observability.histogram import Histogram
from tetrad.services.observability.metrics import REQUESTS_OF_A_STEP, SECONDS_OF_A_STEP, TOKENS

_LOSSES = ("UNAVAILABLE", "STEP_TIMEOUT", "STEP_FAILED", "EXPERTS_LOST", "WORKER_FAULT")
"""The most frequent reasons for the loss of a worker; see executor.py."""

_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all", "kv_cache_released")
"""vLLM's names of the sleep levels."""

_SECONDS_OF_A_BLOCK = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800),
)
"""Upper limits of the buckets for the lives of KV blocks, as in vLLM."""

P = ParamSpec("P")
T = TypeVar("T")
_UPDATE_RESULTS = ("done", "failed")
_NO_VERSION = "default"
"""What /weight_info says before the first update."""
_TRANSFER_RESULTS = ("received", "failed", "sent", "expired")


class StepLog(Protocol):
    """Takes note of steps."""

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Note that a plan is sent."""

    def note_result(self, step_id: int, seconds: float) -> None:
        """Note that a plan's result has arrived; `seconds`: since the result before it, or since the plan was sent."""

    def forget_steps(self) -> None:
        """Forget the plans in flight and their requests: the worker is lost."""


class NoStepLog:
    """Writes nothing."""

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Do nothing."""

    def note_result(self, step_id: int, seconds: float) -> None:
        """Do nothing."""

    def forget_steps(self) -> None:
        """Do nothing."""


class EngineMetrics:
    """The metrics of one engine core, in their own registry.

    Args:
        step_log: takes note of each step.
    """

    def __init__(self, step_log: StepLog | None = None) -> None:
        self._step_log: StepLog = NoStepLog() if step_log is None else step_log
        self.registry = CollectorRegistry()
        seconds = SECONDS_OF_A_STEP
        self.schedule_seconds = self._histogram("schedule_seconds", "Planning a step.", seconds)
        self.update_seconds = self._histogram("update_seconds", "Applying a step's result.", seconds)
        self._round_trip = self._histogram("worker_round_trip_seconds", "From sending a plan to applying its result.", seconds)
        self._step = self._histogram("step_seconds", "Between two results of a busy worker.", seconds)
        self._step_tokens = self._histogram("step_tokens", "Tokens that a step computes.", TOKENS)
        self._step_requests = self._histogram("step_requests", "Requests that a step computes for.", REQUESTS_OF_A_STEP)
        self.grammar_seconds = self._histogram(
            "grammar_compile_seconds", "Compilation of a grammar, including its wait for a thread.", seconds
        )
        self.finished = self._counter("requests_finished", "Requests that ended, by reason.", "finished_reason")
        for reason in FINISH_REASONS.values():  # from zero, so that the first one is a rise
            self.finished.labels(reason.name.lower())
        self.rejected = self._counter("requests_rejected", "Requests rejected, by reason.", "reason")
        self.losses = self._counter("worker_losses", "Times that the worker was lost, by reason.", "reason")
        for loss in _LOSSES:
            self.losses.labels(loss)
        self._weight_updates = self._counter("weight_updates", "Ended updates of the weights, by result.", "result")
        for result in _UPDATE_RESULTS:
            self._weight_updates.labels(result)
        self._transfers = self._counter("kv_transfers", "Ended moves of KV blocks between engine cores, by result.", "result")
        for result in _TRANSFER_RESULTS:
            self._transfers.labels(result)
        self._transfer_bytes = Counter(
            "tetrad:engine_kv_transfer_bytes",
            "Bytes of KV blocks moved between engine cores.",
            registry=self.registry,
        )
        self._transfer_seconds = self._histogram("kv_transfer_seconds", "Reading the KV blocks of a prompt.", seconds)
        lives = _SECONDS_OF_A_BLOCK
        self._block_lifetime = self._histogram(
            "kv_block_lifetime_seconds",
            "From a KV block's allocation to its next one, of some blocks (kv_cache_metrics).",
            lives,
        )
        self._block_idle = self._histogram(
            "kv_block_idle_before_evict_seconds",
            "From a KV block's last use to its next allocation, of some blocks (kv_cache_metrics).",
            lives,
        )
        self._block_gap = self._histogram(
            "kv_block_reuse_gap_seconds", "Between two uses of a cached KV block, of some blocks (kv_cache_metrics).", lives
        )
        self._sent: dict[int, float] = {}
        self._answered = 0.0

    def watch(self, engine: "Watched") -> None:
        """Export the state of an engine's scheduler and sessions from now on."""
        self.registry.register(_Pulled(engine))

    @property
    def block_observers(self) -> BlockObservers:
        """What takes the lives of KV blocks."""
        return BlockObservers(self._block_lifetime.observe, self._block_idle.observe, self._block_gap.observe)

    def timed(self, histogram: Histogram, call: Callable[P, T]) -> Callable[P, T]:
        """Return a function that calls `call` and observes its duration in seconds."""

        def timed_call(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.perf_counter()
            result = call(*args, **kwargs)
            histogram.observe(time.perf_counter() - started)
            return result

        return timed_call

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Record that a plan is sent now."""
        self._sent[plan.step_id] = time.perf_counter()
        self._step_tokens.observe(plan.total_num_scheduled_tokens)
        self._step_requests.observe(plan.num_requests)
        self._step_log.note_plan(plan)

    def note_result(self, step_id: int) -> None:
        """Record that a plan's result has arrived now."""
        now, sent = time.perf_counter(), self._sent.pop(step_id, None)
        if sent is not None:
            self._round_trip.observe(now - sent)
            self._step.observe(seconds := now - max(sent, self._answered))
            self._step_log.note_result(step_id, seconds)
        self._answered = now

    def note_loss(self, reason: str) -> None:
        """Count a lost worker, and forget the plans that it will not answer."""
        self.losses.labels(reason).inc()
        self._sent.clear()
        self._step_log.forget_steps()

    def note_weight_update(self, *, is_done: bool) -> None:
        """Count an update of the weights that has ended; one that failed has left the weights as they were."""
        self._weight_updates.labels(_UPDATE_RESULTS[not is_done]).inc()

    def note_transfers(self, events: TransferEvents) -> None:
        """Count transfers of KV blocks that have ended."""
        num_failed = len(events.failed)
        numbers = (len(events.received) - num_failed, num_failed, len(events.sent) - events.num_expired, events.num_expired)
        for result, number in zip(_TRANSFER_RESULTS, numbers, strict=True):
            self._transfers.labels(result).inc(number)
        self._transfer_bytes.inc(events.bytes_moved)
        if len(events.received) > num_failed:
            self._transfer_seconds.observe(events.seconds)

    def _histogram(self, name: str, text: str, limits: tuple[float, ...]) -> Histogram:
        return Histogram(f"tetrad:engine_{name}", text, limits, registry=self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"tetrad:engine_{name}", text, [label], registry=self.registry)


class SleepState(Protocol):
    """The sleep state of an engine."""

    @property
    def is_asleep(self) -> bool:
        """Whether the engine sleeps."""

    @property
    def level(self) -> int:
        """The level at which the engine sleeps; 0: awake."""


class Watched(Protocol):
    """The parts of an engine that its metrics read."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the engine."""

    @property
    def sessions(self) -> Sessions:
        """The sessions of the engine."""

    @property
    def sleeper(self) -> SleepState:
        """The sleep state of the engine."""


class _Pulled:
    """Reads an engine's state at a scrape, on another thread: values may come from different steps.

    It reads numbers and lengths only, since the engine may change a collection while it is iterated over.
    """

    def __init__(self, engine: Watched) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        scheduler, sessions = self._engine.scheduler, self._engine.sessions
        states, pool, cached = scheduler.states, scheduler.kv_cache.pool, scheduler.kv_cache.stats
        yield _gauge("requests_running", "Requests in the running batch.", len(scheduler.running))
        waiting = GaugeMetricFamily(
            "tetrad:engine_requests_waiting", "Waiting requests, by the reason for the wait.", labels=["reason"]
        )
        # Each is counted by itself: a difference of two counts, which may come from different steps, could be negative.
        waiting.add_metric(["capacity"], states.num_waiting_for_capacity)
        waiting.add_metric(["grammar"], states.num_waiting_for_grammars)
        waiting.add_metric(["adapter"], states.num_waiting_for_adapters)
        yield waiting
        yield _gauge("tokens_waiting", "Tokens of waiting requests.", states.num_waiting_tokens)
        yield _gauge("sessions", "Frontends with an open session.", len(sessions))
        yield _gauge("kv_usage", "Share of KV blocks in use, 0 to 1.", pool.usage)
        yield _gauge("kv_blocks", "KV blocks that requests can use: all but the null block.", pool.num_blocks - 1)
        yield _counter("kv_blocks_cached", "KV blocks added to the prefix cache.", pool.num_cached)
        yield _counter("kv_blocks_evicted", "KV blocks evicted from the prefix cache.", pool.num_evicted)
        num_passed = scheduler.kv_cache.coordinator.num_passed
        yield _counter("kv_blocks_passed", "KV blocks freed because a sliding window had passed them.", num_passed)
        yield _counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", cached.queries)
        yield _counter("prefix_cache_hits", "Tokens found in the prefix cache.", cached.hits)
        yield _counter(
            "prefix_cache_host_hits",
            "Tokens of prefix cache hits found in the second tier.",
            cached.host_hits,
        )
        tier = scheduler.kv_cache.connector.stats()
        yield _gauge("host_blocks", "KV blocks in host memory, the second tier (swap_space).", tier.num_blocks)
        yield _gauge("host_usage", "Share of host blocks in use, 0 to 1.", tier.num_used / (tier.num_blocks or 1))
        yield _counter("blocks_swapped_out", "KV blocks copied to the second tier.", tier.num_saved)
        yield _counter("blocks_swapped_in", "KV blocks copied from the second tier to the device.", tier.num_loaded)
        media = scheduler.media
        yield _gauge("encoder_cache_usage", "Share of the encoder cache in use, 0 to 1.", media.usage)
        yield _gauge("media_encoding", "Media items that the worker is encoding.", media.num_encoding)
        yield _gauge("media_bytes", "Bytes of the media of unfinished requests.", media.num_bytes)
        yield _counter("mm_cache_queries", "Media items looked up in the encoder cache.", media.stats.queries)
        yield _counter("mm_cache_hits", "Media items found in the encoder cache.", media.stats.hits)
        yield _counter("preemptions", "Requests preempted.", states.num_preemptions)
        yield _counter("steps", "Steps planned.", scheduler.step_counter)
        level = self._engine.sleeper.level if self._engine.sleeper.is_asleep else 0
        sleep = GaugeMetricFamily("tetrad:engine_sleep_state", "1 for how the engine sleeps.", labels=["sleep_state"])
        for number, name in enumerate(_SLEEP_STATES):
            sleep.add_metric([name], float(number == level))
        yield sleep
        weights = GaugeMetricFamily(
            "tetrad:engine_weights_info", "1 for the version of the weights.", labels=["weight_version"]
        )
        weights.add_metric([sessions.weight_version or _NO_VERSION], 1.0)
        yield weights
        yield _counter("output_messages", "Messages to frontends.", sessions.num_output_messages)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tetrad:engine_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"tetrad:engine_{name}", text, value=value)
