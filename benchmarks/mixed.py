"""Mixed load: how evenly 16 streams continue while prompts of 2,000 tokens arrive, one after another without a pause.

`python -m benchmarks.mixed`. The same streams first run undisturbed; then uncached prompts are sent, each as soon as the
previous one has its first token. Inter-token latency is the time between chunks of a stream.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import uvloop

from benchmarks.figures import median, percentile, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import SMOLLM2, VLLM, is_installed
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.plots import distributions
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, PROMPT_LEN, running
from benchmarks.streams import StreamClient, new_prompt, open_stream, stream_once
from benchmarks.systems import TETRAD_FLOAT32, TETRAD_GGUF

_NUM_STREAMS = 16
_MAX_TOKENS = 2000
"""Output tokens of a stream: more than a round lasts. Streams are cancelled at its end."""
_LONG_PROMPT = 2000
_PROMPTS_PER_ROUND = 2
_QUIET_S = 2.0
_MAX_RATIO = 3.0


@dataclass
class Latencies:
    """Results of all rounds: gaps in milliseconds, and per round the p99 while prompts arrive over the undisturbed median."""

    quiet_ms: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    long_ttft_ms: list[float] = field(default_factory=list)

    def add(self, quiet_ms: list[float], busy_ms: list[float], long_ttft_ms: list[float]) -> None:
        """Add the results of a round."""
        self.quiet_ms += quiet_ms
        self.busy_ms += busy_ms
        self.long_ttft_ms += long_ttft_ms
        self.ratios.append(percentile(busy_ms, 0.99) / median(quiet_ms))


async def run_round(url: str, num_prompts: int) -> tuple[list[float], list[float], list[float]]:
    """Return milliseconds: undisturbed gaps, gaps while prompts arrived, TTFTs of these prompts.

    Raises:
        RuntimeError: a stream failed.
    """
    streams = [await open_stream(url, _body(PROMPT_LEN, _MAX_TOKENS)) for _ in range(_NUM_STREAMS)]
    await asyncio.gather(*(stream.started for stream in streams))
    quiet = time.perf_counter()
    await asyncio.sleep(_QUIET_S)
    busy = time.perf_counter()
    prompts = [await stream_once(url, _body(_LONG_PROMPT, 1)) for _ in range(num_prompts)]
    end = time.perf_counter()
    if broken := [stream for stream in [*streams, *prompts] if stream.error or not stream.chunk_times_s]:
        raise RuntimeError(f"{len(broken)} streams broke; the first: HTTP {broken[0].status} {broken[0].error}")
    for stream in streams:
        stream.leave()
    await asyncio.gather(*(stream.done for stream in streams))
    return (
        list(_gaps_ms(streams, quiet, busy)),
        list(_gaps_ms(streams, busy, end)),
        [1e3 * (prompt.first_chunk_s or 0.0) for prompt in prompts],
    )


def _gaps_ms(streams: list[StreamClient], start: float, end: float) -> Iterator[float]:
    """Yield the gaps, in milliseconds, that end between `start` and `end`."""
    for stream in streams:
        for chunk, gap in zip(stream.chunk_times_s[1:], stream.gaps_s, strict=True):
            if start < chunk <= end:
                yield 1e3 * gap


def _body(prompt_len: int, max_tokens: int) -> dict[str, object]:
    prompt = new_prompt(prompt_len)
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def measure(urls: Mapping[str, str], options: Options) -> dict[str, Latencies]:
    """Return the latencies of all systems, which are measured alternately."""
    found = {name: Latencies() for name in urls}
    for number in range(options.rounds):
        for name, url in urls.items():
            found[name].add(*uvloop.run(run_round(url, 1 if options.quick else _PROMPTS_PER_ROUND)))
            print(f"round {number + 1}/{options.rounds}: {name}: ratio {found[name].ratios[-1]:.2f}", flush=True)
    return found


def _section(found: Mapping[str, Latencies], options: Options) -> Section:
    section = Section(f"Mixed load: {_NUM_STREAMS} streams while prompts of {_LONG_PROMPT:,} tokens arrive")
    section.text("SmolLM2-135M-Instruct over HTTP. Undisturbed, and while there is always one such prompt; milliseconds.")
    rows = [
        [
            name,
            f"{median(each.quiet_ms):.1f}",
            f"{percentile(each.quiet_ms, 0.99):.1f}",
            f"{median(each.busy_ms):.1f}",
            f"{percentile(each.busy_ms, 0.99):.1f}",
            f"{max(each.busy_ms):.1f}",
            spread(each.ratios, 2),
            spread(each.long_ttft_ms),
        ]
        for name, each in found.items()
    ]
    head = ["", "ITL median", "p99", "with prompts: median", "p99", "most", "p99 / undisturbed median", "TTFT of the prompts"]
    section.table(head, rows)
    series = {f"{name}, undisturbed": each.quiet_ms for name, each in found.items()}
    series |= {f"{name}, with prompts": each.busy_ms for name, each in found.items()}
    section.plot(
        distributions(options, "mixed.png", series, x="time between chunks, ms"), "Distribution of inter-token latency"
    )
    bars = [
        Bar(f"{name}: p99 against the undisturbed median", _MAX_RATIO, median(found[name].ratios), at_most=True)
        for name in (TETRAD_GGUF, TETRAD_FLOAT32)
        if name in found
    ]
    add_bars(section, bars)
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("mixed", __doc__)
    with ExitStack() as exits:
        urls = {TETRAD_GGUF: exits.enter_context(running("--device", "cpu")).url}
        if not options.quick:
            urls[TETRAD_FLOAT32] = exits.enter_context(running("--device", "cpu", "--dtype", "float32")).url
        if options.with_peers and is_installed(VLLM):
            urls[VLLM] = exits.enter_context(vllm_server(SMOLLM2.floats)).url
        found = measure(urls, options)
    write_section("mixed", _section(found, options), options)


if __name__ == "__main__":
    main()
