"""Fan-out: latency of small requests while a request with 1,024 outputs runs, beside their latency without it.

`python -m benchmarks.fan_out`. Four clients send short completions, each its next one as soon as it has its answer: first
alone, then until the large request is answered, or for a limited time. Quiet and disturbed phases take turns.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import uvloop

from benchmarks.figures import median, percentile, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, running
from benchmarks.streams import StreamClient, new_prompt, open_stream, stream_once

_NUM_CLIENTS = 4
_PROMPT_LEN = 16
_MAX_TOKENS = 8
_PHASE_S = 20.0
"""Longest phase; a large request that takes longer is cut off."""
_MAX_RATIO = 3.0
_DEVICES = ("cpu", "sim")
_LARGE: Mapping[str, Mapping[str, object]] = {
    "n = 1,024": {"prompt": new_prompt(_PROMPT_LEN), "n": 1024, "max_tokens": 32},
    "1,024 prompts": {"prompt": [new_prompt(_PROMPT_LEN) for _ in range(1024)], "max_tokens": 8},
}


@dataclass
class Latencies:
    """Milliseconds of all rounds, to the whole answer and to its first token, and the ratios of p99, disturbed over quiet."""

    quiet_ms: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    first_ratios: list[float] = field(default_factory=list)

    def add(self, quiet: list[StreamClient], busy: list[StreamClient]) -> None:
        """Note a round."""
        quiet_ms, busy_ms = ([1e3 * each.total_s for each in found] for found in (quiet, busy))
        first, first_busy = ([1e3 * (each.first_chunk_s or 0.0) for each in found] for found in (quiet, busy))
        self.quiet_ms += quiet_ms
        self.busy_ms += busy_ms
        self.ratios.append(percentile(busy_ms, 0.99) / percentile(quiet_ms, 0.99))
        self.first_ratios.append(percentile(first_busy, 0.99) / percentile(first, 0.99))


async def small_requests(url: str, until: Callable[[], bool]) -> list[StreamClient]:
    """Send short completions until `until` says so; RuntimeError if one fails."""
    done: list[StreamClient] = []

    async def client() -> None:
        while not until():
            done.append(await stream_once(url, _body(prompt=new_prompt(_PROMPT_LEN), max_tokens=_MAX_TOKENS)))
            if done[-1].error:
                raise RuntimeError(f"HTTP {done[-1].status}: {done[-1].error}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_NUM_CLIENTS):
            group.create_task(client())
    return done


async def run_round(url: str, large: Mapping[str, object], phase_s: float) -> tuple[list[StreamClient], list[StreamClient]]:
    """Return the small requests of a quiet phase and of one beside the large request; RuntimeError if one fails."""
    end = time.perf_counter() + phase_s
    quiet = await small_requests(url, lambda: time.perf_counter() > end)
    attack = await open_stream(url, _body(**large))
    end = time.perf_counter() + phase_s
    busy = await small_requests(url, lambda: attack.done.done() or time.perf_counter() > end)
    if attack.error:
        raise RuntimeError(f"the large request: HTTP {attack.status}: {attack.error}")
    attack.leave()
    await attack.done
    return quiet, busy


def _body(**fields: object) -> dict[str, object]:
    return {"model": MODEL, "ignore_eos": True, "temperature": 1, **fields}


def measure(options: Options) -> dict[tuple[str, str], Latencies]:
    """Return the latencies by device and large request."""
    found = {case: Latencies() for case in itertools.product(_DEVICES, _LARGE)}
    for device in _DEVICES:
        with running("--device", device) as stack:
            uvloop.run(run_round(stack.url, _LARGE["n = 1,024"], 2.0))
            for number, name in itertools.product(range(options.rounds), _LARGE):
                case = found[device, name]
                case.add(*uvloop.run(run_round(stack.url, _LARGE[name], _PHASE_S / 4 if options.quick else _PHASE_S)))
                print(f"round {number + 1}/{options.rounds}: {device}, {name}: ratio {case.ratios[-1]:.2f}", flush=True)
    return found


def _section(found: Mapping[tuple[str, str], Latencies]) -> Section:
    section = Section(f"Fan-out: {_NUM_CLIENTS} clients with short requests beside one of 1,024 sequences")
    section.text(
        f"SmolLM2-135M-Instruct and the simulated device, over HTTP. Milliseconds to the whole answer of {_MAX_TOKENS} tokens; "
        "the ratios are of p99 beside the large request over p99 before it, of the whole answer and of its first token."
    )
    rows = [
        [
            f"{device}, {name}",
            f"{median(each.quiet_ms):.1f}",
            f"{percentile(each.quiet_ms, 0.99):.1f}",
            f"{median(each.busy_ms):.1f}",
            f"{percentile(each.busy_ms, 0.99):.1f}",
            spread(each.ratios, 2),
            spread(each.first_ratios, 2),
        ]
        for (device, name), each in found.items()
    ]
    section.table(["", "quiet: median", "p99", "beside it: median", "p99", "ratio of p99", "of p99 to the first token"], rows)
    bars = [
        Bar(f"{device}, {name}: ratio of p99", _MAX_RATIO, median(each.ratios), at_most=True)
        for (device, name), each in found.items()
    ]
    add_bars(section, bars)
    return section


def main() -> None:
    """Measure and report."""
    options = read_options("fan_out", __doc__)
    write_section("fan_out", _section(measure(options)), options)


if __name__ == "__main__":
    main()
