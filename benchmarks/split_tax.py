"""What the split costs: tokens/s of the whole stack against the same scheduler and model runner called in one process.

`python -m benchmarks.split_tax`. The stack is four services over gRPC, measured over HTTP with its client on the same cores:
the tax holds HTTP, text and the client as well. The other side is in_process.py.
"""

import sys
from contextlib import ExitStack

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.lines import DrivenEngine
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import running
from benchmarks.systems import TETRAD_FLOAT32, TETRAD_GGUF, Library, Server

_CASES = {1: (64, 0.90), 32: (32, 0.97)}
"""Batch -> steps a round, and the least share of the direct calls' tokens/s."""
_CONTEXT = 17
_DTYPES = {TETRAD_GGUF: "auto", TETRAD_FLOAT32: "float32"}

Figures = dict[tuple[str, int], tuple[list[float], list[float]]]
"""(form of the weights, batch) -> tokens/s of (the stack, direct calls), round by round."""


def measure(options: Options) -> Figures:
    """Return the rates, in turns."""
    dtypes = {name: dtype for name, dtype in _DTYPES.items() if not options.quick or dtype == "auto"}
    found: Figures = {(name, batch): ([], []) for name in dtypes for batch in _CASES}
    with ExitStack() as exits:
        pairs = {name: _open(exits, dtype) for name, dtype in dtypes.items()}
        for stack, direct in pairs.values():
            stack.decode(32, 4, _CONTEXT)
            direct.decode(32, 4, _CONTEXT)
        for number in range(options.rounds):
            for (name, batch), (over_grpc, directly) in found.items():
                steps = _CASES[batch][0]
                over_grpc.append(pairs[name][0].decode(batch, steps, _CONTEXT))
                directly.append(pairs[name][1].decode(batch, steps, _CONTEXT))
                last = f"{over_grpc[-1]:.0f} against {directly[-1]:.0f}"
                print(f"round {number + 1}/{options.rounds}: {name}, batch {batch}: {last}", flush=True)
    return found


def _open(exits: ExitStack, dtype: str) -> tuple[Server, Library]:
    stack = exits.enter_context(running("--device", "cpu", "--dtype", dtype))
    direct = exits.enter_context(DrivenEngine(sys.executable, "benchmarks.in_process", dtype))
    return Server(stack.url), Library(direct)


def main() -> None:
    """Measure and report."""
    options = read_options("split_tax", __doc__)
    found = measure(options)
    section = Section("The split's tax: the stack against direct calls in one process, output tokens/s")
    section.text(
        "SmolLM2-135M-Instruct. The stack over HTTP, its client on the same cores; direct calls go from the same scheduler to "
        "the same model runner and back ([in_process.py](in_process.py)), without gRPC, HTTP and text."
    )
    rows, bars = [], []
    for (name, batch), (stack, direct) in found.items():
        ratio = ratios(stack, direct)
        rows.append([name, str(batch), spread(stack), spread(direct), spread(ratio, 2)])
        bars.append(Bar(f"{name}, batch {batch}: the stack's share", _CASES[batch][1], median(ratio)))
    section.table(["", "batch", "the stack", "direct calls", "share"], rows)
    add_bars(section, bars)
    write_section("split_tax", section, options)


if __name__ == "__main__":
    main()
