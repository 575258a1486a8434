"""Commits: compares the working tree with an earlier commit: rates of the whole stack, and steps of the engine core.

`python -m benchmarks.commits --against REV`. Both stacks run at the same time and are measured alternately, while the other one
is idle. The earlier commit is checked out into a temporary directory and runs with this tree's installed packages. No file is
written: the ratios belong into a commit's message.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import median, ratios, spread
from benchmarks.http_load import load
from benchmarks.options import Options, new_parser, options_of
from benchmarks.processes import CLIENT, SUPERVISOR, CpuMeter, ProcessTree
from benchmarks.stack import MODEL, Stack, running

_ROOT = Path(__file__).parents[1]
_DEVICES = {"sim": {1: 128, 16: 128, 64: 128}, "cpu": {1: 64, 32: 48}}
"""Device -> number of streams -> output tokens of each stream."""
_REQUESTS = {1: 6, 16: 96, 32: 32, 64: 256}
"""Number of streams -> number of requests per round."""
_ENGINE_STEP = "from benchmarks.engine_step import measure; print(measure(256, 0))"


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check a commit out into a temporary directory and yield its path.

    Raises:
        subprocess.CalledProcessError: git does not know the revision; git's message is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="tetrad-commit-") as directory:
        subprocess.run(["git", "-C", _ROOT, "worktree", "add", "--quiet", "--detach", directory, revision], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["git", "-C", _ROOT, "worktree", "remove", "--force", directory], check=True)


def environment(tree: Path) -> dict[str, str]:
    """Return environment variables with which Python imports the packages of `tree`, not those of the current directory."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def rates(before: Path, options: Options) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield (case, values of the earlier commit, values of this tree), with one value per round.

    The values are tokens per second of wall-clock time, and tokens per second of the services' processor time, which depends
    less on other programs.
    """
    for device, sizes in _DEVICES.items():
        flags = ("--device", device)
        with running(*flags, environment=environment(before)) as old, running(*flags, environment=environment(_ROOT)) as new:
            for streams, max_tokens in sizes.items():
                found: dict[Stack, tuple[list[float], list[float]]] = {old: ([], []), new: ([], [])}
                for stack in found:
                    load(stack.url, MODEL, streams, num_requests=streams, max_tokens=16)
                for number in range(options.rounds):
                    # The stacks alternate in being measured first in a round, because the machine's speed drifts.
                    for stack in found if number % 2 else reversed(found):
                        meter = CpuMeter(ProcessTree(stack.pid))
                        result = load(stack.url, MODEL, streams, num_requests=_REQUESTS[streams], max_tokens=max_tokens)
                        services = sum(seconds for name, seconds in meter.read().items() if name not in (CLIENT, SUPERVISOR))
                        found[stack][0].append(result.tokens_per_s)
                        found[stack][1].append(result.num_tokens / services)
                for number, clock in enumerate(("", " of processor time")):
                    yield f"{device}, {streams} streams, tokens/s{clock}", found[old][number], found[new][number]


def steps(before: Path, options: Options) -> tuple[list[float], list[float]]:
    """Return the engine core's steps per second with 256 running requests: (earlier commit, this tree), one value per round."""
    found: dict[Path, list[float]] = {before: [], _ROOT: []}
    for number in range(options.rounds):
        for tree in found if number % 2 else reversed(found):
            command = [sys.executable, "-c", _ENGINE_STEP]
            variables = {**os.environ, **environment(tree)}
            done = subprocess.run(command, env=variables, cwd=tree, check=True, capture_output=True, text=True)
            found[tree].append(1000 / float(done.stdout))
    return found[before], found[_ROOT]


def print_case(case: str, old: list[float], new: list[float]) -> None:
    """Print the rates of one case and the median of their ratios."""
    ratio = median(ratios(new, old))
    print(f"{case:46} before {spread(old)}   now {spread(new)}   ratio {ratio:.3f}", flush=True)


def main() -> None:
    """Measure, and print one line per case."""
    parser = new_parser(__doc__)
    parser.add_argument("--against", required=True, metavar="REV", help="the earlier commit")
    args = parser.parse_args()
    options = options_of("commits", args)
    with checked_out(args.against) as before:
        print_case("engine core, 256 requests, steps/s", *steps(before, options))
        for case in rates(before, options):
            print_case(*case)


if __name__ == "__main__":
    main()
