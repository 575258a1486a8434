"""Tune: measures launch parameters and writes the fastest as rows of the data tables; `python benchmarks/gpu.py --tune`.

It is not part of a normal run. One process per core compiles the kernels, which fills Triton's cache on disk; then this process
alone measures them one after another. The rows are written to `<out>/tuned/` in the tables' format, to be reviewed and copied
to worker_svc/kernels.
"""

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_sections import few_rows, trials_attention, trials_products
from benchmarks.gpu_sections.bench import Bench, open_bench
from benchmarks.gpu_sections.findings import Findings
from benchmarks.gpu_sections.trial import Trial
from benchmarks.options import Options
from tetrad.worker_svc.core.host import usable_cores
from tetrad.worker_svc.kernels.attention_launch import shared_kib_of
from tetrad.worker_svc.kernels.tile_shapes import load_tuned, save_tuned, tuned_path

_MOST_PROCESSES = 12
_COMPILING = 0.5
"""Largest share of the section's time for compiling."""
_RESERVE_S = 10.0


@dataclass(frozen=True)
class Best:
    """The fastest option of a trial, and its seconds."""

    trial: Trial
    option: Any
    seconds: float


def run(bench: Bench) -> Findings:
    """Compile and measure all trials, and write the rows."""
    findings = Findings("Launch parameters")
    if bench.is_gpu:
        _compile_all(bench)
    best = []
    for trial in _trials(bench):
        if bench.remaining_s < _RESERVE_S:
            findings.skip(f"{trial.table}: {trial.name}", "the time was over")
        elif (found := _best_of(bench, trial)) is not None:
            best.append(found)
    directory = bench.options.out / "tuned"
    directory.mkdir(parents=True, exist_ok=True)
    _write_tiles(bench, directory, best)
    _write_attention(bench, directory, best)
    rows = [[each.trial.table, each.trial.name, str(each.option), f"{each.seconds * 1e6:.1f} us"] for each in best]
    findings.rows(["table", "key", "best", "time"], rows)
    return findings


def _trials(bench: Bench) -> Iterator[Trial]:
    return chain(trials_attention.trials(bench), few_rows.trials(bench), trials_products.trials(bench))


def _best_of(bench: Bench, trial: Trial) -> Best | None:
    """Return the fastest option of a trial; None if no option runs on this card."""
    best = None
    for option in trial.options:
        try:
            seconds = bench.seconds(trial.works(option), is_brief=True)
        except Exception:  # noqa: BLE001, S112 - a configuration that exceeds registers or shared memory is skipped
            continue
        if best is None or seconds < best.seconds:
            best = Best(trial, option, seconds)
    return best


def _compile_all(bench: Bench) -> None:
    """Run every option once, in processes that share Triton's cache."""
    parts = max(1, min(_MOST_PROCESSES, usable_cores() - 1))
    context = multiprocessing.get_context("spawn")
    limit_s = bench.remaining_s * _COMPILING
    given = [(bench.options, limit_s, part, parts) for part in range(parts)]
    workers = [context.Process(target=_compile_part, args=each) for each in given]
    started = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"    compiled by {parts} processes in {time.monotonic() - started:.0f} s", flush=True)


def _compile_part(options: Options, limit_s: float, part: int, parts: int) -> None:
    bench = open_bench("cuda", options, limit_s)
    for trial in _trials(bench):
        for option in trial.options[part::parts]:
            if bench.remaining_s < 0:
                return
            try:
                trial.works(option)[0]()
            except Exception:  # noqa: BLE001, S112 - a configuration that exceeds registers or shared memory is skipped
                continue


def _write_tiles(bench: Bench, directory: Path, best: Sequence[Best]) -> None:
    """Write the card's table with its new rows."""
    shipped = tuned_path(bench.name)
    rows = {each.trial.name: each.option for each in best if each.trial.table == trials_products.TABLE}
    save_tuned(directory / shipped.name, {**load_tuned(shipped), **rows})


def _write_attention(bench: Bench, directory: Path, best: Sequence[Best]) -> None:
    """Write rows for attention_launch.json, one per line."""
    capability = torch.cuda.get_device_capability(bench.device) if bench.is_gpu else (9, 0)
    lines = []
    for each in best:
        if each.trial.table == trials_attention.TABLE:
            kernel, head_dim = each.trial.name.split()
            row = {"kernel": kernel, "shared_kib": shared_kib_of(capability), "value_bytes": 2, "head_dim": int(head_dim)}
            lines.append(f"  {json.dumps({**row, **asdict(each.option)})}")
    (directory / "attention_launch.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
