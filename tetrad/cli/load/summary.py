"""Summary: the results of a load, under the names of vLLM's `bench serve`. Times in milliseconds."""

import math
from collections.abc import Sequence

from tetrad.cli.load.generator import Measured
from tetrad.cli.load.stream_client import StreamClient

_PERCENTILES = (50, 90, 99)

Figures = dict[str, float]


def figures_of(measured: Measured) -> Figures:
    """Return name -> figure. TPOT is an output's time for each token after its first; ITL the time between two pieces."""
    good = [client for client in measured.clients if not client.error]
    duration_s = measured.ended_at - measured.began_at
    num_output = sum(client.num_tokens for client in good)
    num_input = measured.load.input_len * len(good)
    figures: Figures = {
        "completed": len(good),
        "failed": len(measured.clients) - len(good),
        "duration_s": duration_s,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
    }
    for name, values in _latencies(good).items():
        figures |= _described(name, values)
    return figures | measured.drafts.figures()


def table_of(figures: Figures) -> str:
    """Return the figures as lines for people."""
    lines = [f"{_LABELS[name]:<36}{_shown(name, figures[name]):>14}" for name in _LABELS]
    for name in ("ttft", "tpot", "itl", "e2el"):
        lines += [""] + [
            f"{label + ' ' + name.upper() + ' (ms)':<36}{figures[f'{label.lower()}_{name}_ms']:>14.2f}"
            for label in ("Mean", *(f"P{percentile}" for percentile in _PERCENTILES))
        ]
    return "\n".join(lines + _speculation_lines(figures))


def _speculation_lines(figures: Figures) -> list[str]:
    """Return the lines of speculative decoding; none without drafts."""
    if "spec_decode_num_drafts" not in figures:
        return []
    lines = [f"{label:<36}{figures[f'spec_decode_{name}']:>14.{places}f}" for name, (label, places) in _SPECULATION.items()]
    positions = [figures[name] for name in figures if name.startswith("spec_decode_acceptance_at_")]
    lines += [f"{f'  Accepted at position {place} (%)':<36}{each:>14.2f}" for place, each in enumerate(positions)]
    return ["", *lines]


_LABELS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration_s": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
}


_SPECULATION = {
    "acceptance_rate": ("Acceptance rate (%)", 2),
    "acceptance_length": ("Acceptance length", 2),
    "num_drafts": ("Drafts", 0),
    "draft_tokens": ("Draft tokens", 0),
    "accepted_tokens": ("Accepted tokens", 0),
}


def _shown(name: str, figure: float) -> str:
    return f"{figure:.0f}" if (name.startswith("total_") and not name.endswith("put")) or name in _COUNTS else f"{figure:.2f}"


_COUNTS = ("completed", "failed")


def _latencies(clients: Sequence[StreamClient]) -> dict[str, list[float]]:
    answered = [client for client in clients if client.arrived_at]
    return {
        "ttft": [client.arrived_at[0] - client.began_at for client in answered],
        "tpot": [
            (client.arrived_at[-1] - client.arrived_at[0]) / (client.num_tokens - 1)
            for client in answered
            if client.num_tokens > 1
        ],
        "itl": [
            later - earlier
            for client in answered
            for earlier, later in zip(client.arrived_at, client.arrived_at[1:], strict=False)
        ],
        "e2el": [client.ended_at - client.began_at for client in answered],
    }


def _described(name: str, values_s: Sequence[float]) -> Figures:
    ordered = sorted(values_s)
    mean = sum(ordered) / len(ordered) if ordered else math.nan
    described = {f"mean_{name}_ms": mean * 1000}
    for percentile in _PERCENTILES:
        described[f"p{percentile}_{name}_ms"] = percentile_of(ordered, percentile) * 1000
    return described


def percentile_of(ordered: Sequence[float], percentile: float) -> float:
    """Return a percentile of values that are in order, interpolated between the two beside it; NaN if there are none."""
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percentile / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
