"""Launch cost: the time of an empty kernel, in a graph and launched from Python.

A decode step is a graph of some hundred kernels. At batch 1 most of them end within microseconds, so the time between two
kernels limits the number of kernels of a step.
"""

import time
from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings
from tetrad.worker_svc.kernels.dependent_launch import dependent_launch, wait_for_predecessor


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types for its decorator
def _empty_kernel(x, IS_DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, ARG001, N803 - a kernel: untyped, constants in capitals, one argument as a launch has
    wait_for_predecessor(IS_DEPENDENT)


def run(bench: Bench) -> Findings:
    """Measure graphs of empty kernels and launches by the Python launcher."""
    findings = Findings("What a launch costs")
    count = bench.pick(300, 3)
    x = torch.zeros(1, device=bench.device)

    launch = partial(_empty_kernel[(1,)], x, IS_DEPENDENT=False)
    rows = [["in a graph", _text(bench.seconds([launch] * count))]]
    options = dependent_launch(bench.device)
    if options["IS_DEPENDENT"]:
        rows.append(["in a graph, with dependent launch", _text(bench.seconds([partial(launch, **options)] * count))])
    else:
        findings.not_run.append("dependent launch: needs compute capability 9.0")
    bench.wait()
    started = time.perf_counter()
    for _ in range(count):
        launch()
    rows.append(["by the Python launcher: time of the host", _text((time.perf_counter() - started) / count)])
    findings.text(f"An empty Triton kernel of one program, {count} times in a row.")
    findings.rows(["launch", "a kernel"], rows)
    return findings


def _text(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"
