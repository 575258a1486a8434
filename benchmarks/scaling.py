"""Scaling: a model runner's step time by number of requests (1 to 256) and by length of their contexts (up to 8,000 tokens).

`python -m benchmarks.scaling`. A straight line a + b x is fitted to each curve and plotted. A curve whose last doubling is
much steeper than the whole curve is worse than linear. The runner runs alone, in this process. Every page of its KV cache is
written before: the system maps pages that were never written to one page, which stays in the processor's cache.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.figures import median, spread
from benchmarks.options import Options, read_options
from benchmarks.plots import fits
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL
from tetrad.services.hub.model_files import resolve_model
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import Runner, finished
from tetrad.worker_svc.devices import open_device

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BATCH_CONTEXT = 128
_CONTEXTS = (250, 500, 1000, 2000, 4000, 8000)
_CONTEXT_BATCHES = (1, 8)
_BLOCK_SIZE = 16
_STEPS = 3
"""Number of measured steps per round, after one step that is not counted."""
_MAX_MODEL_LEN = 8192
_MAX_STEEPNESS = 1.25
"""Limit of the slope of the last doubling over the slope of the whole curve: 1 for a line, 1.5 for a square."""


@dataclass
class Curve:
    """Step times in milliseconds for each x, one value per round."""

    name: str
    x: str
    times_ms: dict[int, list[float]]

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points of the curve: x and the median step time in milliseconds."""
        return [(x, median(times)) for x, times in self.times_ms.items()]

    def line(self) -> tuple[float, float]:
        """Return (a, b) of the least-squares line a + b x through the points."""
        xs, ys = zip(*self.points, strict=True)
        slope, constant = np.polyfit(xs, ys, 1)
        return float(constant), float(slope)

    def steepness(self) -> float:
        """Return the slope between the last two points over the slope between the first and the last."""
        points = sorted(self.points)
        return _slope(points[-2], points[-1]) / _slope(points[0], points[-1])


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


class StepTimer:
    """Measures decode steps of any number of requests with any length of context, without computing the context first.

    Args:
        runner: a new model runner.
        layout: layout of the runner's KV cache.
    """

    def __init__(self, runner: Runner, layout: KvLayout) -> None:
        self._runner, self._layout = runner, layout
        self._step_id = 0
        # Write every block once, with the content of the null block: reading memory that was never written takes no time.
        null_block, blocks = np.zeros(1, np.int64), np.arange(layout.num_blocks)
        swaps = SchedulerOutput(0, [], _NONE, swap_out=(null_block, null_block), swap_in=(np.zeros_like(blocks), blocks))
        finished(runner.execute(swaps))

    def step_ms(self, batch: int, context: int) -> float:
        """Return the median milliseconds of a step of `batch` requests with `context` tokens each."""
        self._runner.forget_all()
        self._execute([self._request(row, context) for row in range(batch)], _NONE)
        ones = np.ones(batch, np.int64)
        times = []
        for number in range(_STEPS + 1):
            cached = CachedRequests(np.arange(batch), ones, ones * (context + number), 0 * ones, np.empty(0, np.int64))
            start = time.perf_counter()
            self._execute([], cached)
            times.append(1e3 * (time.perf_counter() - start))
        return median(times[1:])

    def _request(self, row: int, context: int) -> NewRequest:
        num_blocks = -(-(context + _STEPS + 2) // _BLOCK_SIZE)
        return NewRequest(
            handle=row,
            request_id=str(row),
            token_ids=np.full(context, 1000 + row),
            num_prompt_tokens=context,
            num_computed_tokens=context - 1,
            num_scheduled_tokens=1,
            block_ids=1 + np.arange(row * num_blocks, (row + 1) * num_blocks)[None],
            sampling=SamplingSpec(temperature=0.0),
        )

    def _execute(self, new: Sequence[NewRequest], cached: CachedRequests) -> None:
        self._step_id += 1
        result = finished(self._runner.execute(SchedulerOutput(self._step_id, new, cached)))
        if result.failures:
            raise RuntimeError(f"Step {self._step_id} failed a request: {result.failures[0][1]}")


_NONE = CachedRequests(*(np.empty(0, np.int64) for _ in range(5)))


def new_timer(dtype: str, num_tokens: int) -> StepTimer:
    """Return a timer over a newly loaded model, with a KV cache for `num_tokens` tokens."""
    device = open_device(WorkerSettings(device="cpu"))
    device.set_up()
    model = device.load_model(LoadRequest(MODEL, resolve_model(MODEL), dtype=dtype), lambda *_: None)
    layout = KvLayout(2 + num_tokens // _BLOCK_SIZE, _BLOCK_SIZE, _MAX_MODEL_LEN, max(_BATCHES), _MAX_MODEL_LEN, 1)
    runner = model.make_runner(layout)
    runner.warm_up(lambda *_: None)
    return StepTimer(runner, layout)


def measure(timer: StepTimer, dtype: str, options: Options) -> list[Curve]:
    """Return the curves of one form of the weights; all points are measured in each round."""
    by_batch = Curve(f"{dtype}, contexts of {_BATCH_CONTEXT}", "requests", {batch: [] for batch in _BATCHES})
    contexts = [each for each in _CONTEXTS if not options.quick or each >= 1000]
    by_context = {
        batch: Curve(f"{dtype}, {batch} requests", "context", {each: [] for each in contexts}) for batch in _CONTEXT_BATCHES
    }
    for _ in range(options.rounds):
        for batch, times in by_batch.times_ms.items():
            times.append(timer.step_ms(batch, _BATCH_CONTEXT))
        for batch, curve in by_context.items():
            for context, times in curve.times_ms.items():
                times.append(timer.step_ms(batch, context))
    return [by_batch, *by_context.values()]


def _section(curves: Sequence[Curve], options: Options) -> Section:
    section = Section("Cost as work grows: the model runner's step time")
    section.text(
        "SmolLM2-135M-Instruct. A decode step of a number of requests, and of their contexts; the line a + b x through the "
        "medians. Steepness is the slope of the last doubling over that of the whole curve: 1 for a line, 1.5 for a square."
    )
    for x in ("requests", "context"):
        found = [curve for curve in curves if curve.x == x]
        xs = list(found[0].times_ms)
        section.table([f"{x}: ms", *map(str, xs)], [[each.name, *(spread(each.times_ms[x], 1) for x in xs)] for each in found])
        series = {each.name: (each.points, each.line()) for each in found}
        section.plot(fits(options, f"scaling_{x}.png", series, x=x, y="ms per step"), f"Step time by {x}")
    rows = [
        [each.name, f"{each.line()[0]:.2f} ms + {1e3 * each.line()[1]:.2f} us x {each.x}", f"{each.steepness():.2f}"]
        for each in curves
    ]
    section.table(["", "fit", "steepness"], rows)
    section.text(
        "The constant is what a step reads once however many requests it has, every weight, and what each launch of a kernel "
        "and the step's bookkeeping take."
    )
    worse = [curve.name for curve in curves if curve.steepness() > _MAX_STEEPNESS]
    section.text(f"Worse than linear: {', '.join(worse) if worse else 'nothing'}.")
    add_bars(section, [Bar(f"{each.name}: steepness", _MAX_STEEPNESS, each.steepness(), at_most=True) for each in curves])
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("scaling", __doc__)
    num_tokens = max(max(_BATCHES) * (_BATCH_CONTEXT + 32), max(_CONTEXT_BATCHES) * (max(_CONTEXTS) + 32))
    curves = []
    for name, dtype in {"Q4_1": "auto", "float32": "float32"}.items():
        if not options.quick or dtype == "auto":
            curves += measure(new_timer(dtype, num_tokens), name, options)
    write_section("scaling", _section(curves, options), options)


if __name__ == "__main__":
    main()
