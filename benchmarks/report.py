"""Report: RESULTS.md, with one section per benchmark. Each benchmark rewrites its own section only.

A section stands between two comments that name it; sections follow ORDER. So a run of one benchmark keeps the figures of the
others and the conditions under which they were measured.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.machine import facts
from benchmarks.options import Options

ORDER = (
    "control_plane", "device_share", "split_tax", "carriers", "decode", "contexts", "prefill", "prefix_cache", "mixed",
    "fan_out", "startup", "engine_step", "hops",
    "scaling", "request_costs", "second_model", "embeddings", "lora", "speculation", "file_edits", "draft_compute",
    "splits", "sums",
)  # fmt: skip
"""The benchmarks, in the order of the report, which is also the order in which run.py runs them."""

_HEAD = """# Results

Each section is written by the command it names; [README.md](README.md) says what is measured and how. Figures are medians over
rounds, with the least and the most in brackets; what is compared took turns within each round. Machines differ and are noisy:
quote the ratios, which come from one run.
"""


@dataclass
class Section:
    """One benchmark's part of the report, in Markdown."""

    title: str
    parts: list[str] = field(default_factory=list)

    def text(self, paragraph: str) -> None:
        """Add a paragraph."""
        self.parts.append(paragraph)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        lines = [head, ["---"] * len(head), *rows]
        self.parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))

    def plot(self, file_name: str | None, title: str) -> None:
        """Add a picture; without a file name, add nothing."""
        if file_name is not None:
            self.parts.append(f"![{title}](plots/{file_name})")


@dataclass(frozen=True)
class Bar:
    """A required result and the measured value. `at_most`: whether the limit is an upper limit; else it is a lower limit."""

    what: str
    limit: float
    found: float
    at_most: bool = False
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the measured value is within the limit."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def row(self) -> tuple[str, str, str, str]:
        """Return the row of the table whose head is BARS_HEAD."""
        bound = "at most" if self.at_most else "at least"
        return (
            self.what,
            f"{bound} {_short(self.limit)}{self.unit}",
            f"{_short(self.found)}{self.unit}",
            "yes" if self.holds else "NO",
        )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


BARS_HEAD = ("promised", "bar", "found", "holds")


def add_bars(section: Section, bars: Sequence[Bar]) -> None:
    """Add the table of required results; without bars, add nothing."""
    if bars:
        section.table(BARS_HEAD, [bar.row() for bar in bars])


def write_section(name: str, section: Section, options: Options) -> None:
    """Replace a benchmark's section in RESULTS.md, or insert it at its place, and print it."""
    conditions = f"`{options.command}` on {facts()}; rounds: {options.rounds}."
    body = "\n\n".join([f"## {section.title}", conditions, *section.parts])
    path = options.out / "RESULTS.md"
    sections = _read_sections(path.read_text() if path.exists() else "")
    sections[name] = body
    ordered = sorted(sections.items(), key=lambda item: ORDER.index(item[0]))
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([_HEAD, *(f"<!-- {key} -->\n{text}\n<!-- end of {key} -->\n" for key, text in ordered)]))
    print(f"\n{body}\n\nwritten: {path}", flush=True)


def _read_sections(text: str) -> dict[str, str]:
    found = re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- end of \1 -->", text, re.DOTALL)
    return {name: body for name, body in found if name in ORDER}
