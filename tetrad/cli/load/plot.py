"""Plot: draws lines over a numeric or a categorical axis, as inline SVG. Used by the report of `tetrad bench`.

No drawing library is a dependency, because matplotlib and its dependencies take 98 MB, this file 4 kB. Colours are CSS classes
of the page, so that a plot has the colours of the light or dark theme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 12, 42
_NUM_TICKS = 5
NUM_COLOURS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A named line. Points that are not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, x_names: Sequence[str] = ()) -> str:
    """Return a figure with its legend. `x_names`: names of the positions 0, 1, ... of a categorical axis."""
    lines = [Line(line.name, [point for point in line.points if all(map(math.isfinite, point))]) for line in lines]
    points = [point for line in lines for point in line.points]
    x_ticks = list(range(len(x_names))) if x_names else _ticks(max((x for x, _ in points), default=1.0))
    y_ticks = _ticks(max((y for _, y in points), default=1.0))
    area = _Area(x_ticks[0], max(x_ticks[-1], x_ticks[0] + 1), y_ticks[-1], is_padded=bool(x_names))
    shapes = [*_grid(area, x_ticks, y_ticks, x_names), *(_drawn(area, line, place) for place, line in enumerate(lines))]
    middle = (_LEFT + _WIDTH - _RIGHT) // 2
    shapes.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    described = escape(f"{title}: {y_label} over {x_label}", quote=True)
    legend = "".join(
        f'<span><i class="c{place % NUM_COLOURS}"></i>{escape(line.name)}</span>' for place, line in enumerate(lines)
    )
    return (
        f"<figure><figcaption>{escape(title)}<small>{escape(y_label)}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{described}">{"".join(shapes)}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )


@dataclass(frozen=True, slots=True)
class _Area:
    """The area of the lines, with the values at its edges."""

    x_min: float
    x_max: float
    y_max: float
    is_padded: bool

    def x(self, value: float) -> float:
        margin = 0.08 if self.is_padded else 0.0
        share = margin + (1 - 2 * margin) * (value - self.x_min) / (self.x_max - self.x_min)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.y_max * (_HEIGHT - _TOP - _BOTTOM)


def _grid(area: _Area, x_ticks: Sequence[float], y_ticks: Sequence[float], x_names: Sequence[str]) -> list[str]:
    shapes = []
    for tick in y_ticks:
        y = area.y(tick)
        shapes.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for place, tick in enumerate(x_ticks):
        text = escape(x_names[place]) if x_names else f"{tick:g}"
        shapes.append(f'<text x="{area.x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{text}</text>')
    return shapes


def _drawn(area: _Area, line: Line, place: int) -> str:
    at = [(area.x(x), area.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in at) if area.is_padded else ""
    return f'<g class="c{place % NUM_COLOURS}"><polyline points="{path}"/>{marks}</g>'


def _ticks(highest: float) -> list[float]:
    """Return round values from 0 to at least `highest`."""
    if not highest > 0:
        return [0.0, 1.0]
    rough = highest / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [float(f"{number * step:.10g}") for number in range(math.ceil(highest / step - 1e-9) + 1)]
