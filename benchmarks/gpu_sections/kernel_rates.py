"""Kernel rates: compares each kernel with the GPU's floors, at the shapes of Qwen2.5-1.5B."""

from collections.abc import Callable

from benchmarks.gpu_sections import few_rows, rates_attention, rates_elementwise, rates_matmul, rates_sampling
from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings, last_line
from benchmarks.gpu_sections.floors import Floors, measure_floors

_FAMILIES: tuple[Callable[[Bench, Floors, Findings], None], ...] = (
    rates_attention.run,
    rates_elementwise.run,
    rates_sampling.run,
    few_rows.run,
    rates_matmul.run,
)


def run(bench: Bench) -> Findings:
    """Measure every family of kernels; after a family has failed, the others still run."""
    findings = Findings("Kernels against the floors")
    floors = measure_floors(bench)
    for family in _FAMILIES:
        try:
            family(bench, floors, findings)
        except Exception as error:  # noqa: BLE001 - any failure of a kernel is reported with the failures
            findings.check(False, f"{family.__module__.rpartition('.')[2]}: {last_line(error)}")
    return findings
