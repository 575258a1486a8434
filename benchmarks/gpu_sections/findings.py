"""Findings: the results of a section. Sections run in processes of their own, so findings are written and read as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.options import Options
from benchmarks.plots import Points, lines
from benchmarks.report import Section


@dataclass
class Findings(Section):
    """A section of the results, and what of it is promised or wrong.

    Attributes:
        found: figures that bars (bars.py) are about, by their names.
        failures: checks that did not hold, a line each; a section with one has failed.
        not_run: what could not be run here, a line each with its reason.
        device: name of what it ran on; empty: it never got that far.
    """

    found: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    device: str = ""

    def check(self, holds: bool, what: str) -> None:
        """Note a failure unless it holds."""
        if not holds:
            self.failures.append(what)

    def skip(self, what: str, reason: str) -> None:
        """Note what could not be run."""
        self.not_run.append(f"{what}: {reason}")

    def rows(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, and print its rows as progress."""
        self.table(head, rows)
        for row in rows:
            print("   ", " | ".join(row), flush=True)

    def curves(self, options: Options, name: str, title: str, series: Mapping[str, Points], *, x: str, y: str) -> None:
        """Add a picture over a logarithmic x, if there is matplotlib.

        Args:
            options: where pictures go.
            name: of its file.
            title: for who cannot see it.
            series: a line each.
            x, y: what the axes are.
        """
        self.plot(lines(options, f"{name}.png", series, x=x, y=y, log_x=True), title)

    def write(self, path: Path) -> None:
        """Write them for `read_findings`."""
        path.write_text(json.dumps(asdict(self)))


def read_findings(path: Path) -> Findings:
    """Return the findings that `Findings.write` wrote."""
    return Findings(**json.loads(path.read_text()))


def last_line(error: BaseException) -> str:
    """Return the last line that a traceback of the error would have; of several, that of the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def file_name_of(device: str) -> str:
    """Return a device's name as a file's: NVIDIA H200 -> nvidia_h200."""
    return "_".join(device.lower().replace("/", " ").split())
