"""Results: formats a sweep as text for a terminal and as a JSON document. Figures have the names of `vllm bench serve`."""

import math
from collections.abc import Sequence
from typing import Any

from tetrad.cli.load.summary import table_of
from tetrad.cli.load.sweep import LevelResult

_COLUMNS = {
    "req/s": "request_throughput",
    "tok/s": "output_throughput",
    "p50 TTFT": "p50_ttft_ms",
    "p99 TTFT": "p99_ttft_ms",
    "p50 TPOT": "p50_tpot_ms",
    "p99 TPOT": "p99_tpot_ms",
}


def text_of(results: Sequence[LevelResult]) -> str:
    """Return the figures of all levels as text, with the ratios if there are two servers."""
    parts = []
    for result in results:
        for server, figures in zip(result.servers, result.figures(), strict=True):
            name = f"{server.url}, " if len(result.servers) > 1 else ""
            title = f"{name}{result.level}"
            parts.append(f"{title}\n{'-' * len(title)}\n{table_of(figures)}")
        if len(result.servers) > 1:
            parts.append(_ratio_table(result))
    if len(results) > 1:
        parts.append(_level_table(results))
    return "\n\n".join(parts)


def document_of(results: Sequence[LevelResult]) -> dict[str, Any]:
    """Return all figures as a JSON document for programs; a figure that is not a number is null."""
    return {"levels": [_level_document(result) for result in results]}


def _level_document(result: LevelResult) -> dict[str, Any]:
    servers = [
        {"url": server.url, "model": server.model} | {name: _plain(figure) for name, figure in figures.items()}
        for server, figures in zip(result.servers, result.figures(), strict=True)
    ]
    document: dict[str, Any] = {
        "max_concurrency": result.level.concurrency,
        "request_rate": result.level.request_rate,
        "rounds": len(result.rounds[0]),
        "servers": servers,
    }
    if len(servers) > 1:
        document["ratios"] = {
            name: dict(zip(("ratio", "min", "max"), map(_plain, values), strict=True))
            for name, values in result.ratios().items()
        }
    return document


def _level_table(results: Sequence[LevelResult]) -> str:
    """Return a table of the main figures with a line for each level and server."""
    width = max(len(str(result.level)) for result in results) + 2
    lines = [f"{'level':<{width}}" + "".join(f"{name:>10}" for name in _COLUMNS)]
    for result in results:
        for server, figures in zip(result.servers, result.figures(), strict=True):
            cells = "".join(f"{figures.get(name, math.nan):>10.2f}" for name in _COLUMNS.values())
            lines.append(f"{result.level!s:<{width}}{cells}" + (f"  {server.url}" if len(result.servers) > 1 else ""))
    return "\n".join(["All levels (times in ms)", "-" * 24, *lines])


def _ratio_table(result: LevelResult) -> str:
    first, second = result.servers
    title = f"Ratios, {first.url} over {second.url}, {result.level}"
    lines = [f"{'figure':<24}{'ratio':>9}{'min':>9}{'max':>9}"]
    lines += [f"{name:<24}" + "".join(f"{each:>9.3f}" for each in values) for name, values in result.ratios().items()]
    return "\n".join([title, "-" * len(title), *lines])


def _plain(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None
