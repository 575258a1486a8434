"""The second model, Qwen2.5-Coder-0.5B-Instruct: decoding, prefill and memory, of Tetrad over HTTP and of peers.

`python -m benchmarks.second_model`. The published file mixes Q4_K, Q5_0, Q6_K and Q8_0 tensors. The model's keys have large
biases, so its KV cache is float16 by default; one system here has an int8 cache, to show the difference. All systems run at the
same time and are measured alternately within a round.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import LLAMA_CPP, QWEN, home
from benchmarks.processes import ProcessTree
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import running
from benchmarks.systems import Server, System, open_peers

_BATCHES = {1: 24, 8: 12, 32: 8}
"""Batch -> number of measured steps per round."""
_CONTEXT = 17
_PROMPT = 1000
_MB = 1e6
AS_FILE = "Tetrad, the file as it is"
_INT8_KEYS = "Tetrad, the file, keys and values in int8"
_FLOAT32 = "Tetrad, float32"
_FLAGS = {
    AS_FILE: (),
    _INT8_KEYS: ("--kv-cache-dtype", "int8"),
    _FLOAT32: ("--dtype", "float32"),
}


@dataclass
class Rates:
    """Tokens/s of one system, one value per round."""

    decode: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in _BATCHES})
    prefill: list[float] = field(default_factory=list)


def measure(systems: Mapping[str, System], options: Options) -> dict[str, Rates]:
    """Return the rates of all systems; a run before the first round is not counted."""
    for system in systems.values():
        system.prefill(_PROMPT)
        for batch in _BATCHES:
            system.decode(batch, 2, _CONTEXT)
    found = {name: Rates() for name in systems}
    for number in range(options.rounds):
        for batch, steps in _BATCHES.items():
            for name, system in systems.items():
                found[name].decode[batch].append(system.decode(batch, steps, _CONTEXT))
        for name, system in systems.items():
            found[name].prefill.append(system.prefill(_PROMPT))
        print(f"round {number + 1}/{options.rounds} is done", flush=True)
    return found


def _section(found: Mapping[str, Rates], worker_mb: Mapping[str, float], file_mb: float) -> Section:
    section = Section("A second model: Qwen2.5-Coder-0.5B-Instruct")
    section.text(
        f"The published GGUF file, {file_mb:.0f} MB. Output tokens/s from prompts of {_CONTEXT} tokens; prompt tokens/s of "
        f"{_PROMPT:,} uncached tokens; the worker's memory (PSS) after the run. Ours and vLLM over HTTP, the others in their "
        "process."
    )
    head = ["", *(f"decode, batch {batch}" for batch in _BATCHES), f"prefill {_PROMPT:,}", "worker MB"]
    section.table(head, [[name, *_cells(rates), _memory(worker_mb.get(name))] for name, rates in found.items()])
    base = found[AS_FILE]
    section.text("The file as it is, against each of the others:")
    rows = []
    for name, rates in found.items():
        if name != AS_FILE:
            decode = [f"{median(ratios(base.decode[batch], rates.decode[batch])):.2f}" for batch in _BATCHES]
            rows.append([name, *decode, f"{median(ratios(base.prefill, rates.prefill)):.2f}"])
    section.table(head[:-1], rows)
    add_bars(section, _bars(found))
    return section


def _cells(rates: Rates) -> list[str]:
    return [*(spread(rates.decode[batch]) for batch in _BATCHES), spread(rates.prefill)]


def _memory(megabytes: float | None) -> str:
    return "-" if megabytes is None else f"{megabytes:.0f}"


def _bars(found: Mapping[str, Rates]) -> list[Bar]:
    if LLAMA_CPP not in found:
        return []
    ours, theirs = found[AS_FILE].decode, found[LLAMA_CPP].decode
    return [
        Bar("batch 1, against llama.cpp", 1.0, median(ratios(ours[1], theirs[1]))),
        Bar("batch 32, against llama.cpp", 1.5, median(ratios(ours[32], theirs[32]))),
    ]


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("second_model", __doc__)
    file = (home() / QWEN.gguf).resolve()
    if not file.exists():
        raise SystemExit(f"There is no {file}; make peers fetches the model.")
    with ExitStack() as exits:
        stacks = {
            name: exits.enter_context(running("--device", "cpu", "--max-model-len", "8192", *flags, model=str(file)))
            for name, flags in _FLAGS.items()
        }
        systems: dict[str, System] = {name: Server(stack.url) for name, stack in stacks.items()}
        found = measure({**systems, **open_peers(exits, options, QWEN)}, options)
        memory = {name: max(ProcessTree(stack.pid).memory_bytes()["worker"]) / _MB for name, stack in stacks.items()}
    write_section("second_model", _section(found, memory, file.stat().st_size / _MB), options)


if __name__ == "__main__":
    main()
