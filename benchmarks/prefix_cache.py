"""The prefix cache: time to the first token of a 1,000-token prompt, cached and uncached, over HTTP.

`python -m benchmarks.prefix_cache`. Each new prompt is sent twice.
"""

from benchmarks.figures import median, ratios, spread
from benchmarks.http_load import load
from benchmarks.options import read_options
from benchmarks.plots import distributions
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, serving
from benchmarks.streams import new_prompt

_LENGTH = 1000
_PAIRS_PER_ROUND = 3
_MAX_CACHED_MS = 60.0
_MAX_RATIO = 0.1


def measure(url: str, pairs: int) -> tuple[list[float], list[float]]:
    """Return milliseconds to the first token: (uncached, cached)."""
    uncached: list[float] = []
    cached: list[float] = []
    for _ in range(pairs):
        prompt = new_prompt(_LENGTH)
        for found in (uncached, cached):
            ttft_s = load(url, MODEL, 1, num_requests=1, max_tokens=1, prompts=[prompt]).ttft_s[0]
            found.append(1e3 * ttft_s)
    return uncached, cached


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("prefix_cache", __doc__)
    with serving("--device", "cpu") as url:
        measure(url, 1)
        uncached, cached = measure(url, _PAIRS_PER_ROUND * options.rounds)
    ratio = median(ratios(cached, uncached))
    section = Section(f"The prefix cache: milliseconds to the first token of {_LENGTH:,} tokens")
    section.text(f"SmolLM2-135M-Instruct, Q4_1, over HTTP, nothing else running; {_PAIRS_PER_ROUND} pairs a round.")
    section.table(
        ["", "TTFT ms"], [["uncached", spread(uncached, 1)], ["cached", spread(cached, 1)], ["ratio", f"{ratio:.3f}"]]
    )
    series = {"uncached": uncached, "cached": cached}
    section.plot(distributions(options, "prefix_cache.png", series, x="time to first token, ms"), "Distribution of TTFT")
    bars = [
        Bar("TTFT of a cached prompt", _MAX_CACHED_MS, median(cached), at_most=True, unit=" ms"),
        Bar("cached against uncached", _MAX_RATIO, ratio, at_most=True),
    ]
    add_bars(section, bars)
    write_section("prefix_cache", section, options)


if __name__ == "__main__":
    main()
