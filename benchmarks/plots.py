"""Plots: draws PNG files beside the report. Without matplotlib (benchmarks/requirements.txt), it prints one line instead."""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.options import Options

Points = Sequence[tuple[float, float]]


def lines(options: Options, file_name: str, series: Mapping[str, Points], *, x: str, y: str, log_x: bool = False) -> str | None:
    """Draw one line per series; return the file's name, None if matplotlib is missing."""
    figure, axes = _new_figure(x, y)
    if figure is None:
        return None
    for name, points in series.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    if log_x:
        ticks = sorted({point[0] for points in series.values() for point in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0)
    return _save(options, file_name, figure, axes)


def fits(
    options: Options, file_name: str, series: Mapping[str, tuple[Points, tuple[float, float]]], *, x: str, y: str
) -> str | None:
    """Draw measured points and the line a + b x through them; return as `lines`."""
    figure, axes = _new_figure(x, y)
    if figure is None:
        return None
    for name, (points, (constant, slope)) in series.items():
        [dots] = axes.plot(*zip(*sorted(points), strict=True), "o", label=name)
        ends = [min(point[0] for point in points), max(point[0] for point in points)]
        axes.plot(ends, [constant + slope * end for end in ends], color=dots.get_color(), alpha=0.6)
    axes.set_ylim(bottom=0)
    return _save(options, file_name, figure, axes)


def distributions(options: Options, file_name: str, series: Mapping[str, Sequence[float]], *, x: str) -> str | None:
    """Draw the share of values (0 to 1) that do not exceed x, one curve per series, on a logarithmic axis."""
    figure, axes = _new_figure(x, "share")
    if figure is None:
        return None
    for name, values in series.items():
        ranked = sorted(values)
        axes.step(ranked, [(number + 1) / len(ranked) for number in range(len(ranked))], where="post", label=name)
    axes.set_xscale("log")
    return _save(options, file_name, figure, axes)


def _new_figure(x: str, y: str) -> tuple[Any, Any]:
    if not _can_plot():
        return None, None
    from matplotlib.figure import Figure  # pyplot would open windows and keep global state

    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(options: Options, file_name: str, figure: Any, axes: Any) -> str:
    axes.legend()
    folder = options.out / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    # Without matplotlib's version in the file, the same figures give the same file.
    figure.savefig(folder / file_name, metadata={"Software": None})
    return file_name


@cache
def _can_plot() -> bool:
    if importlib.util.find_spec("matplotlib") is None:
        print("No plots: matplotlib is not installed (pip install -r benchmarks/requirements.txt).", flush=True)
        return False
    return True
