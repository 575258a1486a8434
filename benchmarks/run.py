"""Runs the whole suite, one benchmark after another, each in a separate process: `make bench`, `make bench-peers`.

`python -m benchmarks.run [--quick] [--no-peers] [--only NAME ...]`. After a benchmark has failed, the others still run; the
exit status is then not 0.
"""

import subprocess
import sys
import time

from benchmarks.options import new_parser
from benchmarks.report import ORDER


def main() -> None:
    """Run the requested benchmarks and print the duration of each."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=ORDER, default=ORDER, help="these benchmarks")
    args = parser.parse_args()
    flags = ["--rounds", str(args.rounds), "--out", str(args.out)]
    flags += [flag for flag, given in (("--quick", args.quick), ("--no-peers", args.no_peers)) if given]
    failed = []
    for name in args.only:
        start = time.perf_counter()
        print(f"\n=== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags], check=False).returncode:
            failed.append(name)
        print(f"=== {name} took {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
