"""Microseconds of a sum over two ranks of one machine, in shared memory and over gloo: `python -m benchmarks.sums`.

Two processes with one thread each compute the sums that a step needs after each attention and each MLP: rows of SmolLM2's
hidden size.
"""

import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection

import torch

from benchmarks.figures import percentile, spread
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from tetrad.worker_svc.core.ranks import GroupPlace, Shard
from tetrad.worker_svc.layers.collectives import Collectives, OpenSums, gloo_sums
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native.library import best_target, load_library
from tetrad.worker_svc.native.shared_sums import SumsOfMachine

_ROWS = (1, 32, 512)
_HIDDEN = 576
_NUM_SUMS = 2000
_KINDS = ("gloo", "shared memory")
_TIMEOUT_S = 60.0
_LIMIT_US = 40
_BAR_ROWS = 32

Times = dict[tuple[str, int], list[float]]
"""(kind, rows) -> microseconds of each sum."""


def measure(options: Options) -> list[Times]:
    """Return the times of each round."""
    load_library(best_target())  # compiled before two processes need it
    return [_measure_round(200 if options.quick else _NUM_SUMS) for _ in range(options.rounds)]


def _measure_round(num_sums: int) -> Times:
    spawning = multiprocessing.get_context("spawn")
    found: Times = {}
    for kind in _KINDS:
        ours, theirs = spawning.Pipe()
        with tempfile.TemporaryDirectory() as directory:
            ranks = [spawning.Process(target=_rank, args=(number, kind, directory, num_sums, theirs)) for number in range(2)]
            for rank in ranks:
                rank.start()
            found |= {(kind, rows): times for rows, times in ours.recv().items()}
            for rank in ranks:
                rank.join()
    return found


def _rank(number: int, kind: str, directory: str, num_sums: int, results: Connection) -> None:
    torch.set_num_threads(1)
    shard = Shard(number, 2)
    met = Rendezvous(GroupPlace(shard, 1, [f"unix:{directory}/{rank}" for rank in range(2)], _TIMEOUT_S))
    open_sums: OpenSums = gloo_sums if kind == "gloo" else SumsOfMachine(load_library(best_target()))
    ranks = Collectives(shard, open_sums)
    ranks.connect(met, "sums", _TIMEOUT_S)
    found = {rows: _times(ranks, rows, num_sums) for rows in _ROWS}
    if number == 0:
        results.send(found)


def _times(ranks: Collectives, rows: int, num_sums: int) -> list[float]:
    times = []
    for _ in range(num_sums):
        x = torch.ones(rows, _HIDDEN)
        start = time.perf_counter()
        ranks.sum_(x)
        times.append((time.perf_counter() - start) * 1e6)
        assert x[-1, -1] == 2
    return times


def report_of(rounds: list[Times]) -> Section:
    """Return the report's section for these times."""
    section = Section("A sum over two ranks of one machine")
    section.text(
        f"Two processes with one thread each add up [rows, {_HIDDEN}] in float32 ([sums.py](sums.py)), microseconds of a sum. "
        "Where other programs use the cores, a rank waits for the other one to get a core: the first tenth shows what a sum "
        "takes when both run."
    )
    rows = []
    for kind in _KINDS:
        for size in _ROWS:
            times = [each[kind, size] for each in rounds]
            tenths, medians = ([percentile(each, share) for each in times] for share in (0.1, 0.5))
            rows.append((kind, str(size), spread(tenths, 1), spread(medians, 1)))
    section.table(("sums", "rows", "first tenth", "median"), rows)
    least = min(percentile(each["shared memory", _BAR_ROWS], 0.1) for each in rounds)
    add_bars(section, [Bar(f"{_BAR_ROWS} rows, both ranks running", _LIMIT_US, least, at_most=True, unit=" us")])
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("sums", __doc__)
    write_section("sums", report_of(measure(options)), options)


if __name__ == "__main__":
    main()
