"""The cost of the split: tokens/s of the stack against the same scheduler and model runner called in one process.

`python -m benchmarks.split_tax`. Over gRPC (over_grpc.py) the stack does the same work as direct calls (in_process.py), from
token ids to token ids, so the difference is the cost of the split. Over HTTP, the whole server is measured, with its client on
the same cores: that difference includes HTTP, text, streams and the client. carriers.py compares gRPC with the direct carrier
in one process.
"""

import sys
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.lines import DrivenEngine
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import running
from benchmarks.systems import TETRAD_FLOAT32, TETRAD_GGUF, Library, Server, System

_CASES = {1: (64, 0.90), 32: (32, 0.97)}
"""Batch -> number of steps per round, and the required least share of the direct calls' tokens/s."""
_CONTEXT = 17
_DTYPES = {TETRAD_GGUF: "auto", TETRAD_FLOAT32: "float32"}


class Ways(NamedTuple):
    """The three ways to call the scheduler, with the system that uses each."""

    grpc: System
    http: System
    direct: System


Figures = dict[tuple[str, int], dict[str, list[float]]]
"""(form of the weights, batch) -> way -> tokens/s, one value per round."""


def measure(options: Options) -> Figures:
    """Return the rates; the ways are measured alternately."""
    dtypes = {name: dtype for name, dtype in _DTYPES.items() if not options.quick or dtype == "auto"}
    found: Figures = {(name, batch): {way: [] for way in Ways._fields} for name in dtypes for batch in _CASES}
    with ExitStack() as exits:
        ways = {name: _open(exits, dtype) for name, dtype in dtypes.items()}
        for each in ways.values():
            for system in each:
                system.decode(32, 4, _CONTEXT)
        for number in range(options.rounds):
            for (name, batch), rates in found.items():
                steps, _ = _CASES[batch]
                for way, system in zip(Ways._fields, ways[name], strict=True):
                    rates[way].append(system.decode(batch, steps, _CONTEXT))
                last = ", ".join(f"{way} {rates[way][-1]:.0f}" for way in Ways._fields)
                print(f"round {number + 1}/{options.rounds}: {name}, batch {batch}: {last}", flush=True)
    return found


def _open(exits: ExitStack, dtype: str) -> Ways:
    stack = exits.enter_context(running("--device", "cpu", "--dtype", dtype))
    grpc = exits.enter_context(DrivenEngine(sys.executable, "benchmarks.over_grpc", stack.engine_target))
    direct = exits.enter_context(DrivenEngine(sys.executable, "benchmarks.in_process", dtype))
    return Ways(grpc=Library(grpc), http=Server(stack.url), direct=Library(direct))


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("split_tax", __doc__)
    found = measure(options)
    section = Section("The split's tax: the stack against direct calls in one process, output tokens/s")
    section.text(
        "SmolLM2-135M-Instruct. Direct calls go from the scheduler to the model runner and back, in one process "
        "([in_process.py](in_process.py)); over gRPC these are the services, ids in and ids out as well "
        "([over_grpc.py](over_grpc.py)). Over HTTP it is the whole server, with its client on the same cores: that share holds "
        "HTTP, text and the client as well."
    )
    rows, bars = [], []
    for (name, batch), rates in found.items():
        shares = {way: ratios(rates[way], rates["direct"]) for way in ("grpc", "http")}
        rows.append([name, str(batch), *(spread(rates[way]) for way in ("direct", "grpc", "http"))])
        rows[-1] += [spread(share, 2) for share in shares.values()]
        for way, title in (("grpc", "over gRPC"), ("http", "over HTTP")):
            bars.append(Bar(f"{name}, batch {batch}: the stack's share {title}", _CASES[batch][1], median(shares[way])))
    section.table(["", "batch", "direct calls", "over gRPC", "over HTTP", "share over gRPC", "share over HTTP"], rows)
    add_bars(section, bars)
    write_section("split_tax", section, options)


if __name__ == "__main__":
    main()
