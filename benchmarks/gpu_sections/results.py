"""Results: the page of one GPU, rewritten after each section, so that an interrupted run keeps its results."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_sections.bars import add_table
from benchmarks.gpu_sections.findings import Findings, file_name_of
from benchmarks.machine import facts
from benchmarks.report import Section

_HEAD = """Written by `python benchmarks/gpu.py`; [docs/cuda.md](../../docs/cuda.md) says how it is run. One run of one
card: times are medians over graph replays, which the card itself timed, unless a table says otherwise."""


@dataclass(frozen=True)
class Result:
    """The findings of a section, and its duration in seconds."""

    findings: Findings
    seconds: float

    @property
    def verdict(self) -> str:
        """The section's result in one or two words."""
        return "FAILED" if self.findings.failures else "done"


class Results:
    """The results of one run.

    Args:
        out: directory of the page.
        order: the sections in the order of the page.
        suffix: suffix of the page's file name.
    """

    def __init__(self, out: Path, order: Sequence[str], suffix: str = "") -> None:
        self._out, self._order, self._suffix = out, order, suffix
        self._results: dict[str, Result] = {}
        self._lock = threading.Lock()
        self.path = out / f"unknown{suffix}.md"

    @property
    def status(self) -> int:
        """The exit status: 1 if a section failed, else 0."""
        return int(any(result.findings.failures for result in self._results.values()))

    def add(self, name: str, result: Result) -> None:
        """Add a section's result and rewrite the page; safe on any thread."""
        with self._lock:
            found = {**self._results, name: result}
            self._results = {each: found[each] for each in self._order if each in found}
            if result.findings.device:
                self.path = self._out / f"{file_name_of(result.findings.device)}{self._suffix}.md"
            self._out.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self._page() + "\n")

    def _page(self) -> str:
        found: dict[str, float] = {}
        for result in self._results.values():
            found |= result.findings.found
        bars = Section("What is promised")
        add_table(bars, found)
        head = [f"# {self.path.stem}", _HEAD, f"The host: {facts()}.", "## What is promised", *bars.parts]
        parts = [part for result in self._results.values() for part in _parts(result)]
        return "\n\n".join([*head, *self._summary(), *parts])

    def _summary(self) -> list[str]:
        summary = Section("The run")
        rows = [[result.findings.title, f"{result.seconds:.0f} s", result.verdict] for result in self._results.values()]
        summary.table(["section", "took", ""], rows)
        for title, lines in (("Failed", "failures"), ("Not run", "not_run")):
            listed = [f"- {line}" for result in self._results.values() for line in getattr(result.findings, lines)]
            if listed:
                summary.text("\n".join([f"{title}:", "", *listed]))
        return ["## The run", *summary.parts]


def _parts(result: Result) -> list[str]:
    return [f"## {result.findings.title}", *result.findings.parts] if result.findings.parts else []
