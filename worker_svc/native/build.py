"""Build: compiles the kernels for every kind of machine, for images without a compiler.

`python -m tetrad.worker_svc.native.build [--machine NAME] [--target NAME ...]` writes into the installed package, where
library.py searches first. --machine aarch64 on another machine needs the cross compiler aarch64-linux-gnu-g++.
"""

import argparse
import sys
from collections.abc import Sequence

from tetrad.worker_svc.native.library import NoLibraryError, compile_library, prebuilt_dir, targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the libraries, print the path of each file on a line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tetrad.worker_svc.native.build", description=__doc__)
    parser.add_argument("--machine", choices=("x86_64", "aarch64"), help="kind of processor; default: this machine's")
    parser.add_argument("--target", action="append", metavar="NAME", help="one of the machine's targets; default: all")
    options = parser.parse_args(arguments)
    known = {target.name: target for target in targets(options.machine)}
    if unknown := set(options.target or ()) - set(known):
        parser.error(f"--target {', '.join(sorted(unknown))}: the machine has the targets {', '.join(known)}")
    for name, target in known.items():
        if options.target and name not in options.target:
            continue
        try:
            path = compile_library(target, prebuilt_dir())
        except (NoLibraryError, OSError) as error:
            sys.stderr.write(f"{target.name}: {error}\n")
            return 1
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
