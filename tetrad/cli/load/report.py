"""Report: writes a sweep as one self-contained HTML page with plots and tables. Used by `tetrad bench --html`."""

from collections.abc import Iterator, Sequence
from html import escape

from tetrad.cli.load.generator import Measured
from tetrad.cli.load.plot import Line, plot
from tetrad.cli.load.summary import (
    LABELS,
    LATENCIES,
    PERCENTILES,
    Figures,
    good_clients,
    label_of,
    latencies_of,
    percentile_of,
    shown,
)
from tetrad.cli.load.sweep import LevelResult
from tetrad.services.version import VERSION

_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between two pieces",
    "e2el": "End to end",
}
_THROUGHPUTS = ("output_throughput", "request_throughput", "request_goodput")
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #596273; --line: #d9dee6; --page: #fff; --c0: #1f5fbf; --c1: #b3480f;
  --c2: #1a7a4c; --c3: #8a2fa0; --c4: #806000; --c5: #b01d4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #a2abbb; --line: #38404d; --page: #14181f; --c0: #79aaf5;
  --c1: #f0945a; --c2: #5cc792; --c3: #cf8be0; --c4: #d9b945; --c5: #f27ca0; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; padding: 1.5rem;
  max-width: 1180px; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } p, small { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: .75rem; }
figcaption { font-weight: 600; display: flex; justify-content: space-between; } figcaption small { font-weight: 400; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); } .grid { stroke: var(--line); }
polyline { fill: none; stroke: currentColor; stroke-width: 2; } circle { fill: currentColor; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .85rem; }
.legend i { display: inline-block; width: 1em; height: 3px; background: currentColor; vertical-align: middle;
  margin-right: .4em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .75rem; border-bottom: 1px solid var(--line); } th:first-child { text-align: left; }
"""


def report_of(results: Sequence[LevelResult]) -> str:
    """Return the HTML page."""
    servers = results[0].servers
    names = [server.url for server in servers]
    measured = [result.measured() for result in results]
    figures = [result.figures() for result in results]
    models = ", ".join(dict.fromkeys(server.model for server in servers))
    parts = [
        f"<h1>Load on {escape(' and '.join(names))}</h1>",
        f"<p>Model {escape(models)}. {len(results[0].rounds[0])} round(s) of each level. Measured by Tetrad {VERSION}.</p>",
        '<h2>By level of load</h2><div class="plots">',
        *_level_plots(results, figures, names),
        '</div><h2>Distributions</h2><div class="plots">',
        *_distributions(results, measured, names),
        "</div><h2>Figures</h2>",
        _figure_table(results, figures, names),
    ]
    if len(servers) > 1:
        parts.append(f"<h2>Ratios, {escape(names[0])} over {escape(names[1])}</h2>{_ratio_table(results)}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tetrad bench</title><meta name="viewport" '
        f'content="width=device-width"><style>{_STYLE}</style></head><body><main>{"".join(parts)}</main></body></html>\n'
    )


def _level_plots(results: Sequence[LevelResult], figures: Sequence[Sequence[Figures]], names: Sequence[str]) -> Iterator[str]:
    levels = [str(result.level) for result in results]

    def lines(of: Sequence[tuple[str, str]]) -> list[Line]:
        return [
            Line(_named(label, name, names), [(at, each[place][figure]) for at, each in enumerate(figures)])
            for place, name in enumerate(names)
            for label, figure in of
        ]

    for figure in _THROUGHPUTS:
        if figure in figures[0][0]:
            title, _, unit = LABELS[figure].removesuffix(")").partition(" (")
            yield plot(title, "level", unit, lines([("", figure)]), x_names=levels)
    for latency in LATENCIES:
        of = [(f"p{percentile}", f"p{percentile}_{latency}_ms") for percentile in PERCENTILES]
        yield plot(_TITLES[latency], "level", "ms", lines(of), x_names=levels)


def _distributions(
    results: Sequence[LevelResult], measured: Sequence[Sequence[Measured]], names: Sequence[str]
) -> Iterator[str]:
    for latency in LATENCIES:
        lines = [
            Line(_named(str(result.level), name, names), _distribution(latencies_of(good_clients(each))[latency]))
            for result, of_servers in zip(results, measured, strict=True)
            for name, each in zip(names, of_servers, strict=True)
        ]
        yield plot(_TITLES[latency], "ms", "% that take at most this", lines)


def _distribution(values_s: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values_s)
    return [(percentile_of(ordered, percentile) * 1000, float(percentile)) for percentile in range(101)]


def _named(label: str, name: str, names: Sequence[str]) -> str:
    return label or name if len(names) == 1 else f"{label} {name}".strip()


def _figure_table(results: Sequence[LevelResult], figures: Sequence[Sequence[Figures]], names: Sequence[str]) -> str:
    columns = [
        (_named(str(result.level), name, names), each)
        for result, of_servers in zip(results, figures, strict=True)
        for name, each in zip(names, of_servers, strict=True)
    ]
    rows = [(label_of(name), [shown(name, each.get(name, float("nan"))) for _, each in columns]) for name in columns[0][1]]
    return _table(["Figure", *(title for title, _ in columns)], rows)


def _ratio_table(results: Sequence[LevelResult]) -> str:
    ratios = [result.ratios() for result in results]
    rows = [(label_of(name), ["{:.3f} ({:.3f} to {:.3f})".format(*each[name]) for each in ratios]) for name in ratios[0]]
    return _table(["Ratio (lowest and highest round)", *(str(result.level) for result in results)], rows)


def _table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    lines = (
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(each)}</td>" for each in cells)}</tr>'
        for name, cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
