"""WorkerMetrics: Prometheus metrics of a worker. Metrics are counted once per step; a scrape reads the worker's state.

A plan's time at the worker is the time in the queue, while the step before it runs, plus the time of the step itself.
"""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tetrad.services.observability.histogram import Histogram
from tetrad.services.observability.metrics import REQUESTS_OF_A_STEP, SECONDS_OF_A_STEP, TOKENS
from tetrad.worker_svc.core.plan import EncoderItem, Ints, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.worker.snapshot import Snapshot

T = TypeVar("T")
_MOST_EXPERTS = 128
_EXPERT_TOKENS = "Tokens that each `expert` of a mixture has computed natively on the CPU, in all layers; above 128 by ranges."
_MEDIA_FAILURES = "Media items that could not be encoded; their requests have failed."
_EXPERT_IMBALANCE = "Tokens of the busiest expert of a layer, over the mean; of the layer where that is largest. 0: no experts."


class WorkerMetrics:
    """The metrics of one worker, in a separate registry.

    Args:
        snapshot: returns the worker's state; called on any thread.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self.registry = CollectorRegistry()
        self._queue = self._histogram(
            "step_queue_seconds", "From receiving a plan to the start of its step.", SECONDS_OF_A_STEP
        )
        self._compute = self._histogram("step_compute_seconds", "Execution of a step on the device.", SECONDS_OF_A_STEP)
        self._input = self._histogram("step_input_seconds", "Building the inputs of a step.", SECONDS_OF_A_STEP)
        self._tokens = self._histogram("step_tokens", "Tokens that a step computes.", TOKENS)
        self._requests = self._histogram("step_requests", "Requests that a step computes for.", REQUESTS_OF_A_STEP)
        self._encode = self._histogram("media_encode_seconds", "Encoding of a media item.", SECONDS_OF_A_STEP)
        self._failures = Counter("tetrad:worker_media_failures", _MEDIA_FAILURES, registry=self.registry)
        self.registry.register(_Pulled(snapshot))

    def run_step(self, plan: SchedulerOutput, queued_at: float, execute: Callable[[SchedulerOutput], T]) -> T:
        """Execute a plan that was queued at `queued_at` (by `time.perf_counter`), and count it; on the compute thread."""
        self._queue.observe(time.perf_counter() - queued_at)
        result = execute(plan)
        new, cached = plan.new_requests, plan.cached.num_scheduled_tokens
        self._tokens.observe(sum(each.num_scheduled_tokens for each in new) + int(cached.sum()))
        self._requests.observe(len(new) + len(cached))
        return result

    def run_encoding(
        self, encode: Callable[[int, EncoderItem, int], None], stream_id: int, item: EncoderItem, after: int
    ) -> None:
        """Call `encode` for a media item, and count the item; on the thread that encodes. See Worker.encode."""
        started = time.perf_counter()
        try:
            encode(stream_id, item, after)
        except Exception:
            self._failures.inc()
            raise
        self._encode.observe(time.perf_counter() - started)

    def note_result(self, result: ModelRunnerOutput) -> None:
        """Count the duration of a step; called on the event loop."""
        self._compute.observe(result.compute_seconds)
        self._input.observe(result.input_seconds)

    def _histogram(self, name: str, text: str, limits: tuple[float, ...]) -> Histogram:
        return Histogram(f"tetrad:worker_{name}", text, limits, registry=self.registry)


class _Pulled:
    """A collector that reads the worker's state at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        seen = self._snapshot()
        weights_bytes = 0 if seen.model is None else seen.model.weights_size_bytes
        num_blocks = 0 if seen.layout is None else seen.layout.num_blocks
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield _gauge("state", "State of the worker: 1 started, 2 loaded, 3 ready, 4 asleep.", seen.state.value)
        yield _gauge("requests", "Requests in the request table.", seen.num_requests)
        yield _gauge("model_load_seconds", "Duration of loading the model; 0: no model is loaded.", seen.model_load_s)
        yield _gauge("weights_bytes", "Memory of the weights.", weights_bytes)
        yield _gauge("kv_cache_bytes", "Memory of the KV cache.", seen.kv_cache_bytes)
        yield _gauge("kv_blocks", "KV blocks, the null block included.", num_blocks)
        yield _gauge("peak_memory_bytes", "Peak memory of the process.", peak_bytes)
        yield _expert_tokens(seen.expert_tokens)
        yield _gauge("expert_imbalance", _EXPERT_IMBALANCE, _expert_imbalance(seen.expert_tokens))


def _expert_tokens(layers: Sequence[Ints]) -> CounterMetricFamily:
    """Return the tokens of each expert, or of ranges of experts if there are many: at most _MOST_EXPERTS series."""
    family = CounterMetricFamily("tetrad:worker_expert_tokens", _EXPERT_TOKENS, labels=["expert"])
    size = max((len(counts) for counts in layers), default=0)
    totals = np.zeros(size, np.int64)
    for counts in layers:
        totals[: len(counts)] += counts
    step = -(-size // _MOST_EXPERTS) if size else 1
    for first in range(0, size, step):
        last = min(first + step, size) - 1
        family.add_metric([str(first) if step == 1 else f"{first}-{last}"], float(totals[first : last + 1].sum()))
    return family


def _expert_imbalance(layers: Sequence[Ints]) -> float:
    return max((float(counts.max() / counts.mean()) for counts in layers if counts.any()), default=0.0)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tetrad:worker_{name}", text, value=value)
