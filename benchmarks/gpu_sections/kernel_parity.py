"""Kernel parity: compares every kernel with float64, at sizes of real models, for which the interpreter would need hours.

An error is relative to the value's size and to that of the values in its row: |found - exact| / (|exact| + rms(row of exact)).
The limit is two eps of the type, or 64 eps in float32 (sums of thousands of terms).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.gpu_sections import few_rows, parity_attention, parity_elementwise, parity_matmul, parity_sampling
from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings, last_line
from benchmarks.gpu_sections.parity_case import Case

_FAMILIES: tuple[Callable[[Bench], Iterator[Case]], ...] = (
    parity_elementwise.cases,
    parity_attention.cases,
    parity_matmul.cases,
    few_rows.cases,
    parity_sampling.cases,
)
_RESERVE_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """The error of a kernel in one case.

    Attributes:
        case: the case.
        kind: data type of the result.
        error: largest relative error; NaN if a value is NaN.
        limit: allowed error.
    """

    case: Case
    kind: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the limit; NaN is not."""
        return self.error <= self.limit

    @property
    def share(self) -> float:
        """The error as a share of its limit; NaN counts as the largest error."""
        return self.error / self.limit if self.error == self.error else float("inf")


def run(bench: Bench) -> Findings:
    """Run every case until the section's time is over."""
    findings = Findings("Kernels against float64")
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for case in (case for family in _FAMILIES for case in family(bench)):
        if bench.remaining_s < _RESERVE_S:
            findings.check(False, f"out of time before {case.name}, {case.shape}")
            break
        outcome = _outcome(case, findings)
        if outcome is not None:
            outcomes.setdefault((case.name, outcome.kind), []).append(outcome)
    findings.text("Errors are relative; the limit follows from what the result's type can tell apart.")
    rows = [_row(name, kind, of_kernel) for (name, kind), of_kernel in outcomes.items()]
    findings.rows(["kernel", "type", "shapes", "worst error", "limit", "at", "holds"], rows)
    return findings


def _outcome(case: Case, findings: Findings) -> Outcome | None:
    """Run a case and return its error; None if the case could not run, which is added to the failures."""
    started = time.monotonic()
    try:
        outcome = compare(case, *case.compute())
    except Exception as error:  # noqa: BLE001 - any failure of a kernel is reported, and the next kernel is checked
        findings.check(False, f"{case.name}, {case.shape}: {last_line(error)}")
        return None
    took = f"{time.monotonic() - started:.1f} s"
    said = f"{case.name}, {case.shape}, {outcome.kind}: error {outcome.error:.1e}, limit {outcome.limit:.1e}"
    print(f"    {said} ({took})", flush=True)
    findings.check(outcome.holds, said)
    return outcome


def _row(name: str, kind: str, outcomes: Sequence[Outcome]) -> list[str]:
    worst = max(outcomes, key=lambda outcome: outcome.share)
    holds = "yes" if worst.holds else "NO"
    return [name, kind, str(len(outcomes)), f"{worst.error:.1e}", f"{worst.limit:.1e}", worst.case.shape, holds]


def compare(case: Case, found: torch.Tensor, exact: torch.Tensor) -> Outcome:
    """Return the error of `found` against `exact`, float64 of the same shape."""
    assert exact.dtype == torch.float64 and exact.shape == found.shape
    kind, eps = str(found.dtype).removeprefix("torch."), torch.finfo(found.dtype).eps
    limit = eps * (64 if found.dtype == torch.float32 else 2)
    if not exact.numel():
        return Outcome(case, kind, 0.0, limit)
    rows = exact.reshape(len(exact) if exact.dim() > 1 else 1, -1)
    scale = rows.abs() + rows.square().mean(1, keepdim=True).sqrt()
    difference = (found.double().reshape(rows.shape) - rows).abs()
    error = (difference / scale.clamp_min(torch.finfo(torch.float64).tiny)).max()
    return Outcome(case, kind, float(error), limit)
