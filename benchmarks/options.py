"""Options: the command-line options that all benchmarks share."""

import argparse
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

_HOME = Path(__file__).parent


@dataclass(frozen=True)
class Options:
    """The options of a benchmark.

    Attributes:
        rounds: number of repetitions; in each, all compared systems are measured one after another.
        quick: run fewer sizes, to check that the benchmark works.
        with_peers: run the installed peers.
        out: directory of RESULTS.md and plots/.
        command: the command line, for the report.
    """

    rounds: int
    quick: bool
    with_peers: bool
    out: Path
    command: str


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(
        description=(doc or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions, in alternation")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--no-peers", action="store_true", help="leave peers out even if they are installed")
    parser.add_argument("--out", type=Path, default=_HOME, help="directory of RESULTS.md and plots/")
    return parser


def options_of(name: str, args: argparse.Namespace) -> Options:
    """Return the options of the benchmark `name`."""
    if args.rounds < 1:
        raise SystemExit(f"--rounds {args.rounds}: at least 1.")
    # Raise SystemExit on this signal, so that `with` and `finally` end the started processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The report does not name the output directory, which does not affect the results.
    given = [each for each in sys.argv[1:] if each not in ("--out", str(args.out))]
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *given])
    return Options(args.rounds, args.quick, not args.no_peers, args.out, command)


def read_options(name: str, doc: str | None) -> Options:
    """Return the options of a benchmark that has only the shared options."""
    return options_of(name, new_parser(doc).parse_args())
