"""Decoding: output tokens/s at batches of 1 to 64, of Tetrad over HTTP through the whole stack and of peers.

`python -m benchmarks.decode`. In each round, the systems are measured one after another. A rate counts only the tokens of the
time in which all sequences decode. Contexts are short; contexts.py measures long ones.
"""

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import LLAMA_CPP
from benchmarks.plots import lines
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.systems import OURS, PLAIN_TORCH, TETRAD_FLOAT32, TETRAD_GGUF, System, best_peer, open_systems

_STEPS = {1: 32, 8: 16, 32: 16, 64: 8}
"""Batch -> number of measured steps per round; chosen so that each batch takes about the same time."""
_QUICK_BATCHES = (1, 32)
_CONTEXT = 17
"""Number of tokens of a short prompt: one KV block, which the prefix cache keeps, and one token."""

Figures = dict[str, dict[int, list[float]]]
"""System -> batch -> tokens/s, one value per round."""


def measure(systems: Mapping[str, System], batches: Mapping[int, int], rounds: int) -> Figures:
    """Return the rates of all systems, measured alternately after one run that is not counted."""
    for system in systems.values():
        for batch in batches:
            system.decode(batch, 2, _CONTEXT)
    found: Figures = {name: {batch: [] for batch in batches} for name in systems}
    for number in range(rounds):
        for batch, steps in batches.items():
            for name, system in systems.items():
                found[name][batch].append(system.decode(batch, steps, _CONTEXT))
        last = ", ".join(
            f"{name} {' '.join(f'{rates[-1]:.0f}' for rates in by_batch.values())}" for name, by_batch in found.items()
        )
        print(f"round {number + 1}/{rounds}: {last}", flush=True)
    return found


def _bars(found: Figures) -> list[Bar]:
    bars = []
    if PLAIN_TORCH not in found:
        best = best_peer({name: rates[32] for name, rates in found.items()})
        at_32 = median(ratios(found[TETRAD_FLOAT32][32], found[best][32]))
        bars.append(Bar(f"float32, batch 32, against the best peer ({best})", 1.5, at_32))
    if LLAMA_CPP in found:
        at_1 = median(ratios(found[TETRAD_GGUF][1], found[LLAMA_CPP][1]))
        bars.append(Bar("GGUF Q4_1, batch 1, against llama.cpp", 1.0, at_1))
    return bars


def _section(found: Figures, options: Options) -> Section:
    section = Section("Decoding: output tokens/s")
    section.text(
        "SmolLM2-135M-Instruct, greedy. Ours and vLLM over HTTP with streaming and the same client; the others called in their "
        "own process. Prompts of 17 tokens. Q4_1 is the GGUF file as it is; float32 is the same file dequantized."
    )
    batches = list(next(iter(found.values())))
    rows = [[name, *(spread(by_batch[batch]) for batch in batches)] for name, by_batch in found.items()]
    section.table(["", *(f"batch {batch}" for batch in batches)], rows)
    section.text("Ours against the fastest of the others at each batch:")
    best = {batch: best_peer({name: by_batch[batch] for name, by_batch in found.items()}) for batch in batches}
    rows = [
        [name, *(f"{median(ratios(found[name][batch], found[best[batch]][batch])):.2f} ({best[batch]})" for batch in batches)]
        for name in OURS
    ]
    section.table(["", *(f"batch {batch}" for batch in batches)], rows)
    points = {name: [(batch, median(rates)) for batch, rates in by_batch.items()] for name, by_batch in found.items()}
    section.plot(lines(options, "decode.png", points, x="batch", y="output tokens/s", log_x=True), "Output tokens/s by batch")
    add_bars(section, _bars(found))
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("decode", __doc__)
    batches = {batch: steps for batch, steps in _STEPS.items() if not options.quick or batch in _QUICK_BATCHES}
    with ExitStack() as exits:
        systems = open_systems(exits, options)
        found = measure(systems, batches, options.rounds)
    write_section("decode", _section(found, options), options)


if __name__ == "__main__":
    main()
