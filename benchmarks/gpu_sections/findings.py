"""Findings: the results of a section. Sections run in separate processes, so findings are written and read as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.options import Options
from benchmarks.plots import Points, lines
from benchmarks.report import Section


@dataclass
class Findings(Section):
    """A section of the results, with its figures for bars and its failures.

    Attributes:
        found: figures for bars (bars.py), by their names.
        failures: one line for each check that failed; a section with a failure has failed.
        not_run: one line for each part that could not run, with the reason.
        device: name of the device; empty: the section failed before it opened the device.
    """

    found: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    device: str = ""

    def check(self, holds: bool, what: str) -> None:
        """Add the failure `what` unless the check holds."""
        if not holds:
            self.failures.append(what)

    def skip(self, what: str, reason: str) -> None:
        """Record a part that could not run."""
        self.not_run.append(f"{what}: {reason}")

    def rows(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, and print its rows as progress."""
        self.table(head, rows)
        for row in rows:
            print("   ", " | ".join(row), flush=True)

    def curves(self, options: Options, name: str, title: str, series: Mapping[str, Points], *, x: str, y: str) -> None:
        """Add a picture with a logarithmic x axis, if matplotlib is installed.

        Args:
            options: has the directory of pictures.
            name: name of the file.
            title: alternative text.
            series: name -> points of a line.
            x, y: labels of the axes.
        """
        self.plot(lines(options, f"{name}.png", series, x=x, y=y, log_x=True), title)

    def write(self, path: Path) -> None:
        """Write the findings as JSON, for `read_findings`."""
        path.write_text(json.dumps(asdict(self)))


def read_findings(path: Path) -> Findings:
    """Return the findings that `Findings.write` wrote."""
    return Findings(**json.loads(path.read_text()))


def last_line(error: BaseException) -> str:
    """Return the last line of the error's traceback; for an exception group, of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def file_name_of(device: str) -> str:
    """Return a device's name as a file name: NVIDIA H200 -> nvidia_h200."""
    return "_".join(device.lower().replace("/", " ").split())
