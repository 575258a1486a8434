"""Decode steps: the time of the runner alone, against the time in which the GPU can read weights, keys and values, or multiply.

Times are wall-clock times over many steps, with two in flight as in the stack: they include the host's time if the device
waits.
"""

import time
from dataclasses import dataclass

import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.floors import Floors, measure_floors
from benchmarks.gpu_sections.model import Loaded, load, make_runner, random_source
from benchmarks.gpu_sections.plans import Batch, random_prompts, run_plans
from tetrad.worker_svc.cuda.runner import CudaModelRunner

_WARM_STEPS = 2


@dataclass(frozen=True)
class Workload:
    """The number of requests, the tokens of context of each, and the number of measured steps."""

    batch: int
    context: int
    steps: int

    @property
    def length(self) -> int:
        """Maximum number of tokens of a request."""
        return self.context + self.steps + _WARM_STEPS + 2


@dataclass(frozen=True)
class Timed:
    """The seconds of all prompts together, and of one decode step."""

    prefill_s: float
    step_s: float


def run(bench: Bench) -> Findings:
    """Measure steps of several batches, with graphs and without."""
    findings = Findings("Decode steps of the model runner alone")
    floors = measure_floors(bench)
    loaded = load(bench, random_source(bench), torch.bfloat16 if bench.is_gpu else torch.float32)
    workloads = [Workload(batch, *bench.pick((1000, 64), (3, 1))) for batch in bench.pick([1, 8, 32, 128], [2])]
    rows: list[list[str]] = []
    curves: dict[str, list[tuple[float, float]]] = {"graphs": [], "no graphs": [], "floor": []}
    for use_graphs in (True, False):
        runner = _runner(bench, loaded, workloads, use_graphs=use_graphs)
        for workload in workloads:
            timed = time_steps(runner, workload, loaded.model.config.vocab_size)
            floor = floor_s(loaded, workload, floors)
            ratio = timed.step_s / floor
            if use_graphs and workload.batch in (1, 128):
                findings.found[f"decode_{workload.batch}"] = ratio
            curves["graphs" if use_graphs else "no graphs"].append((workload.batch, timed.step_s * 1000))
            if use_graphs:
                curves["floor"].append((workload.batch, floor * 1000))
            rows.append(_row(workload, timed, floor, use_graphs=use_graphs))
        del runner
    findings.text(
        "A step's floor is the larger of reading all weights, keys and values once at the bandwidth of a copy, and of the "
        "products at the rate of a large one. Prompts are the whole batch's, in steps of up to 8,192 tokens."
    )
    findings.rows(["graphs", "batch", "context", "step", "floor", "times the floor", "tokens/s", "prompt tokens/s"], rows)
    name = f"{bench.file_name}_decode_steps"
    findings.curves(bench.options, name, "Decode steps", curves, x="requests in a step", y="milliseconds")
    return findings


def time_steps(runner: CudaModelRunner, workload: Workload, vocab_size: int) -> Timed:
    """Run the prompts, some steps that are not counted, and the measured steps; return their times."""
    batch = Batch(random_prompts(workload.batch, workload.context, vocab_size))
    started = time.perf_counter()
    run_plans(runner, batch.prefill_plans())
    prefill_s = time.perf_counter() - started
    run_plans(runner, batch.decode_plans(_WARM_STEPS))
    started = time.perf_counter()
    run_plans(runner, batch.decode_plans(workload.steps))
    step_s = (time.perf_counter() - started) / workload.steps
    runner.forget_all()
    return Timed(prefill_s, step_s)


def floor_s(loaded: Loaded, workload: Workload, floors: Floors) -> float:
    """Return the shortest possible duration of a step in seconds."""
    kv_bytes = workload.batch * workload.context * loaded.model.kv_cache_spec.block_size_bytes(1)
    num_flops = 2 * workload.batch * loaded.num_weights
    return max(floors.bytes_s(loaded.weights_size_bytes + kv_bytes), floors.flops_s(num_flops))


def _runner(bench: Bench, loaded: Loaded, workloads: list[Workload], *, use_graphs: bool) -> CudaModelRunner:
    most = max(workload.batch for workload in workloads)
    length = max(workload.length for workload in workloads)
    started = time.monotonic()
    runner = make_runner(bench, loaded, batch=most, length=length, use_graphs=use_graphs)
    print(f"    warm after {time.monotonic() - started:.1f} s; graphs: {use_graphs}", flush=True)
    return runner


def _row(workload: Workload, timed: Timed, floor: float, *, use_graphs: bool) -> list[str]:
    return [
        "yes" if use_graphs else "no",
        str(workload.batch),
        str(workload.context),
        f"{timed.step_s * 1000:.3f} ms",
        f"{floor * 1000:.3f} ms",
        f"{timed.step_s / floor:.2f}",
        f"{workload.batch / timed.step_s:,.0f}",
        f"{workload.batch * workload.context / timed.prefill_s:,.0f}",
    ]
