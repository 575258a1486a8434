"""Summary: computes the figures of a load, with the names of vLLM's `bench serve`. Times are in milliseconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.cli.load.generator import Measured
from tetrad.cli.load.stream_client import StreamClient

PERCENTILES = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el")

Figures = dict[str, float]


@dataclass(frozen=True)
class LatencyLimits:
    """The latency limits of a good request, in milliseconds. None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def is_kept_by(self, client: StreamClient) -> bool:
        """Return whether a successful request was fast enough."""
        tpot_s = tpot_s_of(client)
        is_early = self.ttft_ms is None or (bool(client.arrived_at) and ttft_s_of(client) * 1000 <= self.ttft_ms)
        return is_early and (self.tpot_ms is None or tpot_s is None or tpot_s * 1000 <= self.tpot_ms)


def figures_of(measured: Measured, limits: LatencyLimits | None = None) -> Figures:
    """Return name -> figure. TPOT is the mean time per token after the first one; ITL is the time between two pieces.

    Goodput counts the requests within the limits; without limits there is no goodput.
    """
    good = good_clients(measured)
    duration_s = measured.duration_s
    num_output = sum(client.num_tokens for client in good)
    num_input = sum(client.num_prompt_tokens for client in good)
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
    if limits is not None and limits != LatencyLimits():
        num_kept = sum(map(limits.is_kept_by, good))
        figures |= {"request_goodput": num_kept / duration_s, "goodput_share": num_kept / max(len(measured.clients), 1)}
    for name, values in latencies_of(good).items():
        figures |= _described(name, values)
    return figures | measured.drafts.figures()


def label_of(name: str) -> str:
    """Return the label of a figure: "P99 TTFT (ms)" for "p99_ttft_ms"."""
    kind, _, latency = name.removesuffix("_ms").partition("_")
    return f"{kind.capitalize()} {latency.upper()} (ms)" if latency in LATENCIES else LABELS.get(name, name)


def table_of(figures: Figures) -> str:
    """Return the figures as a text table."""
    lines = [f"{LABELS[name]:<36}{shown(name, figures[name]):>14}" for name in LABELS if name in figures]
    for name in LATENCIES:
        of_latency = [f"{kind}_{name}_ms" for kind in ("mean", *(f"p{percentile}" for percentile in PERCENTILES))]
        lines += [""] + [f"{label_of(each):<36}{figures[each]:>14.2f}" for each in of_latency]
    return "\n".join(lines + _speculation_lines(figures))


def _speculation_lines(figures: Figures) -> list[str]:
    """Return the lines of speculative decoding; none without drafts."""
    if "spec_decode_num_drafts" not in figures:
        return []
    lines = [f"{label:<36}{figures[f'spec_decode_{name}']:>14.{places}f}" for name, (label, places) in _SPECULATION.items()]
    positions = [figures[name] for name in figures if name.startswith("spec_decode_acceptance_at_")]
    lines += [f"{f'  Accepted at position {place} (%)':<36}{each:>14.2f}" for place, each in enumerate(positions)]
    return ["", *lines]


LABELS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration_s": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "request_goodput": "Request goodput (req/s)",
    "goodput_share": "Share of good requests",
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


def shown(name: str, figure: float) -> str:
    """Return a figure as text; counts have no decimals."""
    return f"{figure:.0f}" if (name.startswith("total_") and not name.endswith("put")) or name in _COUNTS else f"{figure:.2f}"


_COUNTS = ("completed", "failed")


def good_clients(measured: Measured) -> list[StreamClient]:
    """Return the successful requests."""
    return [client for client in measured.clients if not client.error]


def ttft_s_of(client: StreamClient) -> float:
    """Return the time to the first token, in seconds, of a request that has one."""
    return client.arrived_at[0] - client.began_at


def tpot_s_of(client: StreamClient) -> float | None:
    """Return the mean time per token after the first one, in seconds; None if there are no such tokens."""
    if not client.arrived_at or client.num_tokens < 2:
        return None
    return (client.arrived_at[-1] - client.arrived_at[0]) / (client.num_tokens - 1)


def latencies_of(clients: Sequence[StreamClient]) -> dict[str, list[float]]:
    """Return all latencies of these requests by name, in seconds."""
    answered = [client for client in clients if client.arrived_at]
    return {
        "ttft": [ttft_s_of(client) for client in answered],
        "tpot": [tpot_s for client in answered if (tpot_s := tpot_s_of(client)) is not None],
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
    for percentile in PERCENTILES:
        described[f"p{percentile}_{name}_ms"] = percentile_of(ordered, percentile) * 1000
    return described


def percentile_of(ordered: Sequence[float], percentile: float) -> float:
    """Return a percentile of sorted values, interpolated between its two neighbours; NaN if there are no values."""
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percentile / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
