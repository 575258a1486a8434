"""Prefill: prompt tokens/s of uncached prompts of 1,000 tokens, up to the first token, of Tetrad over HTTP and of peers.

`python -m benchmarks.prefill`.
"""

from contextlib import ExitStack

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.systems import OURS, PLAIN_TORCH, best_peer, open_systems

_LENGTH = 1000


def measure(options: Options) -> dict[str, list[float]]:
    """Return system -> tokens/s, one value per round; the systems are measured alternately."""
    with ExitStack() as exits:
        systems = open_systems(exits, options)
        found: dict[str, list[float]] = {name: [] for name in systems}
        for system in systems.values():
            system.prefill(_LENGTH)
        for number in range(options.rounds):
            for name, system in systems.items():
                found[name].append(system.prefill(_LENGTH))
            last = ", ".join(f"{name} {rates[-1]:.0f}" for name, rates in found.items())
            print(f"round {number + 1}/{options.rounds}: {last}", flush=True)
    return found


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("prefill", __doc__)
    found = measure(options)
    best = best_peer(found)
    section = Section(f"Prefill: prompt tokens/s of {_LENGTH:,} tokens, uncached")
    section.text("SmolLM2-135M-Instruct. Ours and vLLM over HTTP, up to the first chunk; the others in their process.")
    rows = [[name, spread(rates), f"{median(ratios(rates, found[best])):.2f}"] for name, rates in found.items()]
    section.table(["", "tokens/s", f"against {best}"], rows)
    if best != PLAIN_TORCH:
        # The limit is compared with the fastest form of the weights on the CPU device.
        ours = max(median(ratios(found[name], found[best])) for name in OURS)
        add_bars(section, [Bar(f"prefill against the best peer ({best})", 1.1, ours)])
    write_section("prefill", section, options)


if __name__ == "__main__":
    main()
