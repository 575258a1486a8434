"""Writes Grafana's dashboard of what panels.py says; `make dashboard` puts it into grafana/dashboards/tetrad.json."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from panels import ROWS, Panel

_WIDTH, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": "tetrad",
        "title": "Tetrad",
        "tags": ["tetrad", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Yield rows and panels from left to right, top to bottom."""
    number, y = 0, 0
    for row in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            number += 1
            yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT})
            x += panel.width
        y += _HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
