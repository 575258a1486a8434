"""Step profile: the kernels of a decode step, with number and duration of their calls, and the device's idle time.

On a GPU, torch's profiler records five replays of a step's graph. Without a GPU, the interpreter counts the calls of Triton
kernels in models of one and of two layers: the difference is the number of calls per layer.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.interpreter import GridExecutor

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.model import TINY, load, make_runner, random_source
from benchmarks.gpu_sections.plans import Batch, random_prompts, run_plans
from tetrad.worker_svc.checkpoint.random import RandomSource
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.families.registry import supported_config

_STEPS = 5
_CONTEXT = 1000
_NAME_LENGTH = 80


@dataclass(frozen=True)
class Interval:
    """The run of a kernel on the device; times are in microseconds."""

    name: str
    start: float
    end: float


def run(bench: Bench) -> Findings:
    """Profile decode steps of one and of 128 requests, or count kernel calls without a GPU."""
    findings = Findings("The kernels of a decode step")
    if bench.is_gpu:
        _profile(bench, findings)
    else:
        _count(bench, findings)
    return findings


def idle_us(intervals: Sequence[Interval]) -> float:
    """Return the microseconds between the first start and the last end in which no kernel ran."""
    idle, busy_until = 0.0, float("inf")
    for interval in sorted(intervals, key=lambda each: each.start):
        idle += max(0.0, interval.start - busy_until)
        busy_until = interval.end if busy_until == float("inf") else max(busy_until, interval.end)
    return idle


def _profile(bench: Bench, findings: Findings) -> None:
    loaded = load(bench, random_source(bench), torch.bfloat16)
    batches = bench.pick((1, 128), (1,))
    context = bench.pick(_CONTEXT, 3)
    runner = make_runner(bench, loaded, batch=max(batches), length=context + 2 * _STEPS + 4)
    for size in batches:
        prompts = random_prompts(size, context, loaded.model.config.vocab_size)
        intervals = _record(runner, prompts)
        names = Counter(each.name for each in intervals)
        took = {name: sum(each.end - each.start for each in intervals if each.name == name) for name in names}
        rows = [
            [f"`{name[:_NAME_LENGTH]}`", f"{names[name] / _STEPS:g}", f"{us / _STEPS:.1f} us"]
            for name, us in sorted(took.items(), key=lambda item: -item[1])
        ]
        rows.append(["all", f"{len(intervals) / _STEPS:g}", f"{sum(took.values()) / _STEPS:.1f} us"])
        rows.append(["idle", "", f"{idle_us(intervals) / _STEPS:.1f} us"])
        findings.text(f"Batch {size}, context {context:,}: a step, the mean of {_STEPS}.")
        findings.rows(["kernel", "times a step", "time a step"], rows)


def _record(runner: CudaModelRunner, prompts: list[Any]) -> list[Interval]:
    """Return the kernel runs of some decode steps."""
    batch = Batch(prompts)
    run_plans(runner, [*batch.prefill_plans(), *batch.decode_plans(2)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run_plans(runner, batch.decode_plans(_STEPS))
        torch.cuda.synchronize()
    runner.forget_all()
    events = [each for each in profile.events() or () if each.device_type.name == "CUDA"]
    return [Interval(each.name, each.time_range.start, each.time_range.end) for each in events]


def _count(bench: Bench, findings: Findings) -> None:
    one, two = (_calls_of_a_step(bench, num_layers) for num_layers in (1, 2))
    layer = two - one
    rows = [[f"`{name}`", str(layer[name]), str(one[name] - layer[name])] for name in sorted(two)]
    rows.append(["all", str(layer.total()), str(one.total() - layer.total())])
    findings.text("Triton's kernels alone: what torch launches is seen on a GPU.")
    findings.rows(["kernel", "times a layer", "times a step beside the layers"], rows)


def _calls_of_a_step(bench: Bench, num_layers: int) -> Counter[str]:
    config = {**TINY, "num_hidden_layers": num_layers}
    source = RandomSource(config, supported_config(config), 0, bench.device)
    loaded = load(bench, source, torch.float32)
    runner = make_runner(bench, loaded, batch=2, length=16)
    batch = Batch(random_prompts(2, 3, loaded.model.config.vocab_size))
    run_plans(runner, [*batch.prefill_plans(), *batch.decode_plans(1)])
    with _counted_calls() as calls:
        run_plans(runner, batch.decode_plans(1))
    return calls


@contextmanager
def _counted_calls() -> Iterator[Counter[str]]:
    """Count the interpreter's kernel calls by kernel name while the context is open."""
    calls: Counter[str] = Counter()
    call = GridExecutor.__call__

    def counted(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        calls[executor.fn.__name__] += 1
        call(executor, *args, **kwargs)

    with patch.object(GridExecutor, "__call__", counted):
        yield calls
