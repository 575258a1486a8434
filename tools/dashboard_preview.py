"""Draws a Grafana dashboard from a Prometheus server's answers to its queries: for documents, and for machines without Grafana.

Positions, titles, units and stacking are those of the dashboard; everything else is drawn as matplotlib does it, not as Grafana
does. `python tools/dashboard_preview.py DASHBOARD.json --prometheus http://127.0.0.1:9090 --out dashboard.png`
"""

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

_COLUMNS = 24
_INCHES_X, _INCHES_Y = 0.75, 0.42
"""Size in inches of a column, and of a unit of height, of the dashboard's grid."""
_MAX_LEGEND = 8
_COLORS = 48
_UNITS = {"s": "seconds", "reqps": "requests/s", "percentunit": "share", "bytes": "bytes"}


class Prometheus:
    """Queries a Prometheus server for the last seconds.

    Args:
        url: URL of the server's HTTP API.
        seconds: length of the queried time, up to now.
        rate_interval: value of $__rate_interval.
    """

    def __init__(self, url: str, *, seconds: float, rate_interval: str) -> None:
        self._url, self._seconds, self._rate_interval = url, seconds, rate_interval
        self._end = time.time()

    def series(self, target: dict[str, str]) -> list[tuple[str, list[float], list[float]]]:
        """Return name, times and values of each line of a query; times are in seconds relative to the end."""
        query = {
            "query": target["expr"].replace("$__rate_interval", self._rate_interval),
            "start": self._end - self._seconds,
            "end": self._end,
            "step": max(self._seconds / 120, 1),
        }
        with urllib.request.urlopen(f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(query)}") as response:
            found = json.load(response)["data"]["result"]
        return [
            (
                re.sub(r"\{\{(\w+)\}\}", lambda label: each["metric"].get(label[1], ""), target["legendFormat"]).strip(),  # noqa: B023 - called at once
                [float(at) - self._end for at, _ in each["values"]],
                [float(value) for _, value in each["values"]],
            )
            for each in found
        ]


def draw(dashboard: dict[str, Any], prometheus: Prometheus, out: Path) -> None:
    """Draw the dashboard and write the picture to `out`."""
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(_COLUMNS * _INCHES_X, height * _INCHES_Y), dpi=72)
    for panel in panels:
        place = panel["gridPos"]
        left, top = place["x"] / _COLUMNS, 1 - place["y"] / height
        if panel["type"] == "row":
            figure.text(0.01, top - 0.6 / height, panel["title"], fontsize=14, weight="bold", va="center")
            continue
        bottom, size = top - (place["h"] - 1.4) / height, (place["h"] - 2.6) / height
        axes = figure.add_axes((left + 0.035, bottom, place["w"] / _COLUMNS - 0.045, size))
        _draw_panel(axes, panel, prometheus)
    figure.savefig(out)
    plt.close(figure)
    with Image.open(out) as picture:
        small = picture.convert("RGB").quantize(_COLORS)
    small.save(out, optimize=True)


def _draw_panel(axes: Axes, panel: dict[str, Any], prometheus: Prometheus) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    lines = [line for target in panel["targets"] for line in prometheus.series(target)]
    if "stacking" in defaults["custom"]:
        _stack(axes, lines)
    else:
        for name, times, values in lines:
            axes.plot(times, values, label=name, linewidth=1)
    axes.set_title(panel["title"], fontsize=9, loc="left")
    axes.set_ylabel(_UNITS.get(defaults["unit"], ""), fontsize=7)
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if lines:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[:_MAX_LEGEND], labels[:_MAX_LEGEND], fontsize=6, loc="upper left", framealpha=0.6)


def _stack(axes: Axes, lines: list[tuple[str, list[float], list[float]]]) -> None:
    """Draw stacked lines at the times that all of them have; NaN and negative values count as 0."""
    if not lines:
        return
    by_time = [dict(zip(times, values, strict=True)) for _, times, values in lines]
    common = sorted(set.intersection(*(set(each) for each in by_time)))
    heights = [[max(each[at], 0.0) if each[at] == each[at] else 0.0 for at in common] for each in by_time]
    axes.stackplot(common, heights, labels=[name for name, _, _ in lines], alpha=0.7)


def main() -> None:
    """Read the arguments and draw the dashboard."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dashboard", type=Path)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="URL of the Prometheus.")
    parser.add_argument("--seconds", type=float, default=600.0, help="How far back.")
    parser.add_argument("--rate-interval", default="1m", help="What $__rate_interval stands for.")
    parser.add_argument("--out", type=Path, default=Path("dashboard.png"))
    options = parser.parse_args()
    prometheus = Prometheus(options.prometheus, seconds=options.seconds, rate_interval=options.rate_interval)
    draw(json.loads(options.dashboard.read_text()), prometheus, options.out)


if __name__ == "__main__":
    main()
