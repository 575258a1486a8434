"""Processes: runs each section in its own process, with a time limit, and writes the results after each.

A kernel with an invalid write or an endless loop makes its CUDA context unusable: only a new process can continue.
"""

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu_sections.findings import Findings, last_line, read_findings
from benchmarks.gpu_sections.results import Result, Results
from benchmarks.options import Options

if TYPE_CHECKING:
    from benchmarks.gpu_sections.bench import Bench

Run = Callable[["Bench"], Findings]

TOTAL_S = 530.0
"""Time limit of all sections together."""
_START_S = 30.0
"""Seconds for the start of torch, the device and libraries, added to a section's own limit."""


def run_all(limits_s: Mapping[str, float], args: argparse.Namespace, results: Results, untimed: Collection[str]) -> int:
    """Run sections and add their findings to `results`; return 1 if one failed, else 0.

    Args:
        limits_s: time limit of each section in seconds, in the order of the page.
        args: the command's arguments.
        results: the page.
        untimed: sections that measure no times. They run first and side by side, because most of their time is the compiler's;
            the others run one after another.
    """
    end = time.monotonic() + TOTAL_S

    def run(name: str) -> None:
        print(f"=== {name} (at most {limits_s[name]:g} s)", flush=True)
        result = _run_in_process(name, min(limits_s[name] + _START_S, end - time.monotonic()), args)
        results.add(name, result)
        print(f"=== {name} took {result.seconds:.0f} s; {result.verdict}", flush=True)
        for line in (*result.findings.failures, *result.findings.not_run):
            print(f"    {line}", flush=True)

    beside = [name for name in limits_s if name in untimed]
    with ThreadPoolExecutor(max(len(beside), 1)) as threads:
        list(threads.map(run, beside))
    for name in limits_s:
        if name not in untimed:
            run(name)
    print(f"written: {results.path}", flush=True)
    return results.status


def run_one(name: str, limit_s: float, args: argparse.Namespace) -> int:
    """Run a section in this process and write its findings to the file that the parent reads."""
    findings = run_section(name, limit_s, args)
    findings.write(args.answer)
    return 0


def run_section(name: str, limit_s: float, args: argparse.Namespace) -> Findings:
    """Run a section and return its findings; an error that it raises is added to the failures."""
    # Imported here, so that the parent does not need torch.
    from benchmarks.gpu_sections.bench import open_bench

    options = Options(rounds=1, quick=args.quick, with_peers=True, out=args.out, command="python benchmarks/gpu.py")
    device = ""
    try:
        bench = open_bench(args.device, options, limit_s, args.weights)
        device = bench.name
        run: Run = importlib.import_module(f"benchmarks.gpu_sections.{name}").run
        findings = run(bench)
    except Exception as error:  # noqa: BLE001 - any failure of a section is reported, and the next section runs
        traceback.print_exc()
        findings = Findings(name, failures=[f"{name}: {last_line(error)}"])
    findings.device = device
    return findings


def _run_in_process(name: str, timeout_s: float, args: argparse.Namespace) -> Result:
    if timeout_s <= 0:
        return Result(Findings(name, failures=[f"{name}: no time was left for it"]), 0.0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tetrad-gpu-") as directory:
        answer = Path(directory) / "findings.json"
        given = ["--device", args.device, "--out", str(args.out), "--only", name, "--answer", str(answer)]
        command = [sys.executable, str(Path(__file__).parents[1] / "gpu.py"), *given, *_optional(args)]
        why = run_limited(command, timeout_s)
        silent = Findings(name, failures=[f"{name}: {why or 'it wrote no findings'}"])
        findings = read_findings(answer) if answer.exists() else silent
    return Result(findings, time.monotonic() - started)


def _optional(args: argparse.Namespace) -> list[str]:
    weights = [] if args.weights is None else ["--weights", str(args.weights)]
    return [*weights, *(["--quick"] if args.quick else [])]


def run_limited(command: list[str], timeout_s: float) -> str:
    """Run a command and return a description of its failure. After the time limit, kill it with all processes it started."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {timeout_s:.0f} s"
    else:
        return f"its process ended with status {status}" if status else ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
