"""Launch cost: the time of an empty kernel, in a graph and launched from Python.

A decode step is a graph of some hundred kernels. At batch 1 most of them end within microseconds, so the time between two
kernels limits the number of kernels of a step.
"""

import time
from typing import Any

import torch
import triton

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings

_DEPENDENT_LAUNCH_FROM = (9, 0)
"""The lowest compute capability of devices on which a kernel may start before its predecessor ends."""


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types for its decorator
def _empty_kernel(x_ptr: Any) -> None:
    pass


def run(bench: Bench) -> Findings:
    """Measure graphs of empty kernels and launches by the Python launcher."""
    findings = Findings("What a launch costs")
    count = bench.pick(300, 3)
    x = torch.zeros(1, device=bench.device)

    def launch(**options: bool) -> None:
        _empty_kernel[(1,)](x, **options)

    rows = [["in a graph", _text(bench.seconds([launch] * count))]]
    if bench.is_gpu and torch.cuda.get_device_capability(bench.device) >= _DEPENDENT_LAUNCH_FROM:
        dependent = bench.seconds([lambda: launch(launch_pdl=True)] * count)
        rows.append(["in a graph, with programmatic dependent launch", _text(dependent)])
    else:
        findings.not_run.append("programmatic dependent launch: needs compute capability 9.0")
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
